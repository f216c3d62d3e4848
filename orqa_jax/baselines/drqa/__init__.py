"""DrQA (Chen et al. 2017): TF-IDF over articles, and a recurrent reader of their paragraphs."""
