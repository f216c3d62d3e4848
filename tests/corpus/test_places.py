from tiny_world import documents, world

from orqa_jax.corpus.places import block_at, blocks_of_documents


def test_every_character_is_in_its_block():
    store = world().store
    found = blocks_of_documents(store, ["d4", "d9", "nobody"])
    assert found.keys() == {"d4", "d9"}
    texts = {document["id"]: document["text"] for document in documents()}
    for document, blocks in found.items():
        assert len(blocks) > 1
        for start in range(len(texts[document])):
            block = block_at(store, blocks, start)
            if block is None:
                # Between two blocks there is white space only.
                assert texts[document][start].isspace()
            else:
                offset = start - store.document_start(block)
                assert store.text(block)[offset] == texts[document][start]
    assert block_at(store, found["d4"], 10_000) is None
    assert block_at(store, [], 0) is None
    assert blocks_of_documents(store, []) == {}
