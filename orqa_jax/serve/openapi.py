"""The OpenAPI description of the service."""

from typing import Any

from orqa_jax import __version__
from orqa_jax.serve.config import CANDIDATES, RETRIEVED, ServeConfig

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_BLOCK: Schema = {
    "block": _COUNT | {"description": "Number of the block in the corpus."},
    "title": _TEXT | {"description": "Title of its document."},
    "document_id": _TEXT | {"description": "Id of its document, as in the source."},
    "block_start": _COUNT
    | {
        "description": "Its first character in the document. All offsets count Unicode code points."
    },
    "block_text": _TEXT | {"description": "Its text, exactly as in the document."},
}
_CANDIDATE: Schema = _BLOCK | {
    "answer": _TEXT | {"description": "Exactly the characters of the document."},
    "start": _COUNT | {"description": "First character of the answer in the document."},
    "end": _COUNT | {"description": "One past its last character."},
    "sentence_start": _COUNT | {"description": "First character of the sentence around it."},
    "sentence_end": _COUNT | {"description": "One past that sentence's last character."},
    "score": _NUMBER | {"description": "What ranks the candidates: the sum of the next two."},
    "retrieval_score": _NUMBER,
    "reader_score": _NUMBER,
    "probability": {
        "type": ["number", "null"],
        "description": "Of this span among all that were read; not calibrated.",
    },
}
_ANSWER: Schema = {
    "question": _TEXT,
    "answer": {
        "type": ["string", "null"],
        "description": "The best candidate; null where no block that was read can hold an answer.",
    },
    "probability": {
        "type": ["number", "null"],
        "description": "That the answer is right, calibrated; null where the run has no "
        "calibration.",
    },
    "abstain": {
        "type": ["boolean", "null"],
        "description": "Whether the answer had better not be given; null without a calibration.",
    },
    "candidates": {"type": "array", "items": {"$ref": "#/components/schemas/Candidate"}},
    "weights_fingerprint": _TEXT | {"description": "The model that answered."},
}
_ERROR: Schema = {
    "error": {
        "type": "object",
        "properties": {"code": _TEXT, "message": _TEXT},
        "required": ["code", "message"],
    }
}
_REFUSALS = {
    "400": "The body is not what it should be; the message says what is wrong.",
    "408": "The body took too long to arrive.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "This client asks more than it may; see Retry-After.",
    "500": "It could not be answered; the log says why.",
    "503": "Still loading, or too many questions are waiting; see Retry-After.",
}


def describe(config: ServeConfig) -> Schema:
    """The description, OpenAPI 3.1, with the limits of this server."""
    question = _TEXT | {"minLength": 1, "maxLength": config.max_characters, "pattern": r"\S"}
    questions = {
        "type": "array",
        "items": question,
        "minItems": 1,
        "maxItems": config.max_questions,
    }
    candidates = _whole(CANDIDATES, CANDIDATES) | {"description": "Candidates to return."}
    k = _whole(RETRIEVED, 10) | {"description": "Blocks to return of each retriever."}
    ask = {"question": "Who founded the town?"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "orqa",
            "version": __version__,
            "description": "Answers questions from a corpus of documents, with evidence.",
        },
        "servers": [{"url": "."}],
        "paths": {
            "/v1/answer": _post(
                "Answer a question",
                {"question": question, "candidates": candidates},
                ["question"],
                ask,
                "Answer",
            ),
            "/v1/answers": _post(
                "Answer several questions",
                {"questions": questions, "candidates": candidates},
                ["questions"],
                {"questions": ["Who founded the town?", "When was the bridge built?"]},
                "Answers",
            ),
            "/v1/retrieve": _post(
                "Retrieve blocks without reading them",
                {"question": question, "k": k},
                ["question"],
                ask | {"k": 3},
                "Retrieved",
            ),
            "/v1/about": _get("What is served, and within which limits", "About", loading=True),
            "/healthz": _get("Whether the process is alive", "Status"),
            "/readyz": _get("Whether questions are answered", "Status", loading=True),
            "/metrics": _get("Metrics in the text format of Prometheus", None),
        },
        "components": {
            "schemas": {
                "Answer": _object(_ANSWER),
                "Answers": _object(
                    {"answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}}}
                ),
                "Candidate": _object(_CANDIDATE),
                "Block": _object(_BLOCK | {"score": _NUMBER}),
                "Retrieved": _object(
                    {
                        "question": _TEXT,
                        "retrieved": {
                            "type": "object",
                            "description": "By retriever: bm25, dense, hybrid, as the run has "
                            "them. Their scores have no common scale.",
                            "additionalProperties": {
                                "type": "array",
                                "items": {"$ref": "#/components/schemas/Block"},
                            },
                        },
                    }
                ),
                "About": _object(
                    {
                        "run": _TEXT,
                        "system": _TEXT,
                        "retrievers": {"type": "array", "items": _TEXT},
                        "blocks": _COUNT,
                        "blocks_read": _COUNT,
                        "corpus_fingerprint": _TEXT,
                        "weights_fingerprint": _TEXT,
                        "calibrated": {"type": "boolean"},
                        "abstains_below": {"type": ["number", "null"]},
                        "limits": {"type": "object"},
                        "last_load_failure": {"type": ["string", "null"]},
                    }
                ),
                "Status": _object({"status": _TEXT}),
                "Error": _object(_ERROR),
            }
        },
    }


def _whole(most: int, default: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _responses(schema: str | None, refusals: dict[str, str]) -> Schema:
    content = _json(schema) if schema else {"text/plain": {"schema": _TEXT}}
    refused = {
        status: {"description": text, "content": _json("Error")}
        for status, text in refusals.items()
    }
    return {"200": {"description": "As asked.", "content": content}} | refused


def _post(
    summary: str, properties: Schema, required: list[str], example: Schema, schema: str
) -> Schema:
    body = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": body, "example": example}},
            },
            "responses": _responses(schema, _REFUSALS),
        }
    }


def _get(summary: str, schema: str | None, *, loading: bool = False) -> Schema:
    refusals = {"503": "Still loading; see Retry-After."} if loading else {}
    return {"get": {"summary": summary, "responses": _responses(schema, refusals)}}
