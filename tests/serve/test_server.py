"""Servers as people start them: processes that are asked over HTTP."""

import functools
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_process import CODE, serving, wait_until
from tiny_world import documents, trained_run, world

from orqa_jax.errors import OrqaError
from orqa_jax.index.bm25 import BM25Index
from orqa_jax.models.weights import fingerprint_params, save_params
from orqa_jax.predict import chosen_system, load_answerer
from orqa_jax.serve.config import ServeConfig
from orqa_jax.serve.server import serve
from orqa_jax.train.checkpoint import describe_model, load_model, save_model

QUESTIONS = [
    "Who founded the salt market of Tarnholt in 1226?",
    "When did Dunya Holt found the salt market of Velduna?",
    "  Where do the glaziers live, and\nwhich river\tflows past?  ",
    "кто основал 塩の市場 🏰 in Velduna?",
    "?",
    "\u202e\u200b who\x00 \x1b[31m founded",
    "[SEP] [CLS] founded",
    "é" * 200,
]


POST = b"POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@functools.cache
def answerer(system="orqa"):
    return load_answerer(trained_run(), system=system)


@pytest.fixture(scope="module")
def server():
    limits = {"--max-batch": 8, "--max-wait-ms": 100, "--max-questions": 12, "--max-queue": 48}
    flags = [str(part) for flag in limits.items() for part in flag]
    with serving(trained_run(), *flags, "--max-characters", "200") as started:
        yield started


def agrees(found, expected):
    """Whether what was served is what the same model answers here."""
    assert found["question"] == expected.question
    assert found["answer"] == expected.candidates[0].answer
    assert found["probability"] is None
    assert found["abstain"] is None
    texts = {document["id"]: document for document in documents()}
    for got, candidate in zip(found["candidates"], expected.candidates, strict=True):
        document = texts[got["document_id"]]
        assert got["title"] == document["title"]
        assert document["text"][got["start"] : got["end"]] == got["answer"] == candidate.answer
        assert got["block"] == candidate.block
        block = got["block_start"], got["block_start"] + len(got["block_text"])
        assert document["text"][slice(*block)] == got["block_text"]
        sentence = document["text"][got["sentence_start"] : got["sentence_end"]]
        assert sentence in got["block_text"]
        assert got["answer"] in sentence
        assert re.fullmatch(r"\S.*[.!]", sentence)
        for name in ("score", "retrieval_score", "reader_score", "probability"):
            assert got[name] == pytest.approx(getattr(candidate, name), rel=1e-3, abs=1e-4)


# --- Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_as_without_a_server(server, question):
    reply = server.post("/v1/answer", {"question": question})
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    agrees(reply.json, answerer().answer([question])[0])
    # What is written as an escape is the same question.
    escaped = json.dumps({"question": question, "candidates": 2}, ensure_ascii=True).encode()
    again = server.post("/v1/answer", escaped).json
    assert again["answer"] == reply.json["answer"]
    assert len(again["candidates"]) == 2


def test_many_questions_come_back_in_order(server):
    reply = server.post("/v1/answers", {"questions": QUESTIONS + QUESTIONS[:3]})
    assert reply.status == 200
    found = reply.json["answers"]
    expected = answerer().answer(QUESTIONS + QUESTIONS[:3])
    for one, answer in zip(found, expected, strict=True):
        agrees(one, answer)


def test_retrieval_side_by_side(server):
    question = QUESTIONS[0]
    found = server.post("/v1/retrieve", {"question": question, "k": 7}).json
    assert found["question"] == question
    assert list(found["retrieved"]) == ["bm25", "dense", "hybrid"]
    store = world().store
    bm25 = BM25Index.open(trained_run() / "bm25", corpus_fingerprint=store.fingerprint)
    retrievers = {
        "bm25": bm25,
        "dense": answerer().retriever,
        "hybrid": answerer("hybrid").retriever,
    }
    for name, blocks in found["retrieved"].items():
        ids_BK, scores_BK = retrievers[name].search([question], 7)
        assert [block["block"] for block in blocks] == ids_BK[0].tolist()
        scores = [block["score"] for block in blocks]
        np.testing.assert_allclose(scores, scores_BK[0], rtol=1e-3)
        for block in blocks:
            assert block["title"] == store.title(block["block"])
            assert block["block_text"] == store.text(block["block"])
            assert block["document_id"] == store.document_id(block["block"])
            assert block["block_start"] == store.document_start(block["block"])
    # There are fewer blocks than can be asked for.
    everything = server.post("/v1/retrieve", {"question": question, "k": 100}).json["retrieved"]
    assert {len(blocks) for blocks in everything.values()} == {len(store)}


def test_concurrent_requests_share_batches_and_get_their_own_answers(server):
    asked = [
        f"Who founded the {thing} in {1200 + 13 * n}?"
        for n, thing in enumerate(["salt market", "wind mill"] * 12)
    ]
    before = server.metrics()
    with ThreadPoolExecutor(len(asked)) as pool:
        together = threading.Barrier(len(asked))

        def ask(question):
            together.wait()
            return server.post("/v1/answer", {"question": question}).json

        found = list(pool.map(ask, asked))
    for one, expected in zip(found, answerer().answer(asked), strict=True):
        agrees(one, expected)
    after = server.metrics()

    def rise(*key):
        return after[key] - before[key]

    assert rise("orqa_batch_questions_sum", "") == 24
    assert 3 <= rise("orqa_batch_questions_count", "") <= 8
    assert rise("orqa_queue_seconds_count", "") == 24
    assert rise("orqa_requests_total", "/v1/answer 200") == 24
    assert rise("orqa_request_seconds_count", "/v1/answer") == 24
    assert rise("orqa_questions_total", "") == 24
    assert after["orqa_queue_questions", ""] == 0
    assert after["orqa_ready", ""] == 1


# --- What is refused ------------------------------------------------------------------------------

DEEP = b'{"question": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/answer", b"", 400, "broken_json"),
        ("/v1/answer", b'{"question": "wh', 400, "broken_json"),
        ("/v1/answer", b'{"question": "\xff"}', 400, "broken_json"),
        ("/v1/answer", b'{"question": NaN}', 400, "broken_json"),
        ("/v1/answer", DEEP[:9_000] , 400, "broken_json"),
        ("/v1/answer", b'{"candidates": 1' + b"0" * 5000 + b"}", 400, "broken_json"),
        ("/v1/answer", b"[]", 400, "not_an_object"),
        ("/v1/answer", b'"who?"', 400, "not_an_object"),
        ("/v1/answer", {}, 400, "no_question"),
        ("/v1/answer", {"question": 3}, 400, "no_question"),
        ("/v1/answer", {"question": None}, 400, "no_question"),
        ("/v1/answer", {"question": ["who?"]}, 400, "no_question"),
        ("/v1/answer", {"question": ""}, 400, "empty_question"),
        ("/v1/answer", {"question": " \n\u3000"}, 400, "empty_question"),
        ("/v1/answer", {"question": "w" * 201}, 400, "question_too_long"),
        ("/v1/answer", b'{"question": "\\ud800 who?"}', 400, "broken_unicode"),
        ("/v1/answer", {"question": "who?", "k": 3}, 400, "unknown_key"),
        ("/v1/answer", {"question": "who?", "candidates": 0}, 400, "wrong_candidates"),
        ("/v1/answer", {"question": "who?", "candidates": 6}, 400, "wrong_candidates"),
        ("/v1/answer", {"question": "who?", "candidates": True}, 400, "wrong_candidates"),
        ("/v1/answer", {"question": "who?", "candidates": 2.0}, 400, "wrong_candidates"),
        ("/v1/retrieve", {"question": "who?", "k": 101}, 400, "wrong_k"),
        ("/v1/retrieve", {"question": "who?", "k": "3"}, 400, "wrong_k"),
        ("/v1/answers", {"questions": []}, 400, "no_questions"),
        ("/v1/answers", {"questions": "who?"}, 400, "no_questions"),
        ("/v1/answers", {"questions": ["who?", ""]}, 400, "empty_question"),
        ("/v1/answers", {"questions": ["who?"] * 13}, 400, "too_many_questions"),
        ("/v1/answer", b'{"question": "' + b"w" * 40_000, 413, "body_too_large"),
        ("/v1/answer", DEEP, 413, "body_too_large"),
        ("/v1/nothing", {}, 404, "not_found"),
        ("/../../etc/passwd", {}, 404, "not_found"),
        ("/v1/about", {}, 405, "method_not_allowed"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(server, path, body, status, code):
    reply = server.post(path, body)
    assert reply.status == status, reply.body
    assert reply.json["error"]["code"] == code
    assert reply.json["error"]["message"].endswith(".")
    assert server.post("/v1/answer", {"question": "Who?"}).status == 200


@settings(max_examples=30)
@given(st.text(st.characters(), max_size=210))
def test_any_text_is_answered_or_refused(server, question):
    reply = server.post("/v1/answer", {"question": question})
    try:
        question.encode()
        fits = bool(question.strip()) and len(question) <= 200
    except UnicodeEncodeError:
        fits = False
    assert reply.status == (200 if fits else 400), reply.body
    if fits:
        best = reply.json["candidates"][0]
        at = slice(best["start"] - best["block_start"], best["end"] - best["block_start"])
        assert reply.json["question"] == question
        assert best["block_text"][at] == reply.json["answer"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["question", "questions", "candidates", "k", ""])


@settings(max_examples=30)
@given(st.sampled_from(["answer", "answers", "retrieve"]), JSON | st.dictionaries(KEYS, JSON))
def test_any_json_is_answered_or_refused(server, path, value):
    assert server.post(f"/v1/{path}", value).status in (200, 400)


@settings(max_examples=40)
@given(st.binary(max_size=50))
def test_any_bytes_are_refused(server, body):
    assert server.post("/v1/answer", body).status == 400


def test_a_body_that_does_not_say_its_length_is_measured(server):
    part = b"400\r\n" + b"w" * 1024 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + part)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        connection.sendall(part * 30)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_read(server, kind):
    """Other pages may send anything else to this machine without being asked."""
    reply = server.send("POST", "/v1/answer", b'{"question": "Who?"}', Content_Type=kind)
    assert (reply.status, reply.json["error"]["code"]) == (415, "not_json")
    same = server.post(
        "/v1/answer", {"question": "Who?"}, Content_Type="Application/JSON; charset=utf-8"
    )
    assert same.status == 200


def test_what_is_no_http_is_refused(server):
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(sent)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert server.get("/readyz").status == 200


def test_names_of_other_sites_do_not_reach_this_machine(server):
    assert server.get("/v1/about", Host="evil.example").status == 400
    assert server.get("/v1/about", Host="evil.example:80").status == 400
    for name in ("localhost:80", "127.0.0.1", "[::1]:8080"):
        assert server.get("/v1/about", Host=name).status == 200
    foreign = server.post("/v1/answer", {"question": "Who?"}, Origin="https://evil.example")
    assert not [name for name in foreign.headers if name.startswith("access-control")]


# --- What else there is ---------------------------------------------------------------------------


def test_pages_and_description(server):
    for path in ("/", "/docs"):
        reply = server.get(path)
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
    assert b"Ask the documents" in server.get("/").body
    description = server.get("/openapi.json").json
    asked = description["paths"]["/v1/answers"]["post"]["requestBody"]
    schema = asked["content"]["application/json"]["schema"]
    assert schema["properties"]["questions"]["maxItems"] == 12
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                assert server.get(path).status == 200
            else:
                body = operation["requestBody"]["content"]["application/json"]["example"]
                assert server.post(path, body).status == 200


def test_replies_have_the_described_shape(server):
    schemas = server.get("/openapi.json").json["components"]["schemas"]
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds |= {"object": dict, "array": list, "null": type(None)}

    def check(value, schema):
        if "$ref" in schema:
            return check(value, schemas[schema["$ref"].rpartition("/")[2]])
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, kinds[kind]) for kind in types), (value, schema)
        if isinstance(value, list):
            for one in value:
                check(one, schema["items"])
        elif "properties" in schema:
            assert value.keys() == schema["properties"].keys()
            for name, one in value.items():
                check(one, schema["properties"][name])
        elif "additionalProperties" in schema:
            for one in value.values():
                check(one, schema["additionalProperties"])

    question = {"question": QUESTIONS[3]}
    check(server.post("/v1/answer", question).json, schemas["Answer"])
    check(server.post("/v1/answers", {"questions": QUESTIONS}).json, schemas["Answers"])
    check(server.post("/v1/retrieve", question).json, schemas["Retrieved"])
    check(server.get("/v1/about").json, schemas["About"])
    check(server.get("/readyz").json, schemas["Status"])
    check(server.post("/v1/answer", {}).json, schemas["Error"])


def test_what_is_served(server):
    about = server.get("/v1/about").json
    model = describe_model(trained_run() / "finetune" / "model", kind="question answerer")
    assert about["weights_fingerprint"] == model["weights_fingerprint"]
    assert about["corpus_fingerprint"] == world().store.fingerprint
    assert about["blocks"] == len(world().store)
    assert (about["system"], about["calibrated"]) == ("orqa", False)
    assert about["limits"]["max_questions"] == 12
    labels = f"{world().store.fingerprint} orqa {model['weights_fingerprint']}"
    assert server.metrics()["orqa_model", labels] == 1


def test_the_log_has_no_questions_and_one_line_a_request(server):
    secret = "Who founded the vault of Xyzzyford?"
    server.post("/v1/answer", {"question": secret})
    server.post("/v1/answer", {"question": [secret]})
    server.get("/v1%0AForged%20line/" + "x" * 500)
    wait_until(lambda: "Forged" in server.log)
    assert "Xyzzyford" not in server.log
    lines = [json.loads(line.split(" ", 2)[2]) for line in server.log.splitlines() if "{" in line]
    forged = next(line for line in lines if "Forged" in line["path"])
    assert forged["path"].startswith("/v1\nForged line/x")
    assert len(forged["path"]) == 200
    answered = [line for line in lines if line["path"] == "/v1/answer"]
    assert answered[-2]["questions"] == 1
    assert answered[-1]["status"] == 400
    assert not any(line.startswith("Forged") for line in server.log.splitlines())
    assert ("orqa_requests_total", "other 404") in server.metrics()


def test_a_client_that_leaves_is_noted(server):
    body = b'{"question": "Who?"}'
    head = POST + f"Content-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
    wait_until(lambda: '"status": 499' in server.log)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body[:5])
    wait_until(lambda: server.log.count('"status": 499') >= 2)
    assert server.log.count('"status": 499') == 2


@pytest.mark.slow
def test_clients_that_dribble_are_not_waited_for(server):
    started = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as headers,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as body,
    ):
        body.sendall(POST + b"Content-Length: 50\r\n\r\n")
        for byte in POST[:9]:
            headers.sendall(bytes([byte]))
            body.sendall(b" ")
            time.sleep(1)
        assert silent.recv(10) == b""
        assert headers.recv(10) == b""
        assert body.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert 9 < time.monotonic() - started < 15
        # The same on a connection that has been used before.
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as again:
        again.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += again.recv(4096)
        again.sendall(b"GET /rea")
        started = time.monotonic()
        assert again.recv(10) == b""
        assert 9 < time.monotonic() - started < 15


# --- Queue and stop -------------------------------------------------------------------------------


def test_a_full_queue_and_a_stop_that_finishes_what_was_accepted():
    """Batches of this server wait for two seconds, so that there is time to do things to it."""
    flags = [
        "--max-batch",
        8,
        "--max-wait-ms",
        2000,
        "--max-queue",
        4,
        "--max-questions",
        3,
        "--log-questions",
    ]
    with serving(trained_run(), *flags) as server, ThreadPoolExecutor(4) as pool:
        three = {"questions": QUESTIONS[:3]}
        first = pool.submit(server.post, "/v1/answers", three)
        wait_until(lambda: server.metrics()["orqa_queue_questions", ""] == 3)
        refused = server.post("/v1/answers", {"questions": QUESTIONS[:2]})
        assert (refused.status, refused.json["error"]["code"]) == (503, "queue_full")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert server.post("/v1/answer", {"question": QUESTIONS[4]}).status == 200
        assert first.result().status == 200

        accepted = [
            pool.submit(server.post, "/v1/answers", three),
            pool.submit(server.post, "/v1/answer", {"question": QUESTIONS[4]}),
        ]
        wait_until(lambda: server.metrics()["orqa_queue_questions", ""] == 4)
        server.process.send_signal(signal.SIGTERM)
        replies = [one.result() for one in accepted]
        assert [reply.status for reply in replies] == [200, 200]
        for one, expected in zip(
            [*replies[0].json["answers"], replies[1].json],
            answerer().answer([*QUESTIONS[:3], QUESTIONS[4]]),
            strict=True,
        ):
            agrees(one, expected)
        assert server.process.wait(30) == 0
        with pytest.raises(ConnectionRefusedError):
            server.get("/readyz")
        assert QUESTIONS[0] in server.log
        assert server.log.splitlines()[-1].endswith("every accepted request was answered")
        assert "Traceback" not in server.log


# --- A newer run ----------------------------------------------------------------------------------


def changed_run(folder, change):
    """A copy of the run whose reader has other weights."""
    shutil.copytree(trained_run(), folder, ignore=shutil.ignore_patterns("checkpoints"))
    model = folder / "finetune" / "model"
    about, params, tokenizer = load_model(model, kind="question answerer")
    params["reader"] = change(params["reader"])
    kept = {k: v for k, v in about.items() if k not in ("schema", "kind")}
    description = {k: v for k, v in kept.items() if not k.startswith(("weights_", "tokenizer_"))}
    save_model(
        model, kind=about["kind"], description=description, params=params, tokenizer=tokenizer
    )
    return folder


def run_of_nan(folder):
    """A copy of the run with a reader that no training would have saved."""
    model = changed_run(folder, lambda params: params) / "finetune" / "model"
    about, params, _ = load_model(model, kind="question answerer")
    params["reader"] = scaled(params["reader"], np.nan)
    save_params(model / "weights.safetensors", params)
    about["weights_fingerprint"] = fingerprint_params(params)
    (model / "model.json").write_text(json.dumps(about))
    return folder


def scaled(params, factor):
    import jax

    return jax.tree.map(lambda x: x * np.float32(factor), params)


@pytest.fixture
def newer_runs(tmp_path):
    """Runs by name, and the link to the one that is served."""
    runs = {
        "old": changed_run(tmp_path / "old", lambda params: params),
        "new": changed_run(tmp_path / "new", lambda params: scaled(params, -1.5)),
        "nan": run_of_nan(tmp_path / "nan"),
        "damaged": changed_run(tmp_path / "damaged", lambda params: scaled(params, 2)),
    }
    weights = runs["damaged"] / "finetune" / "model" / "weights.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-100] ^= 1
    weights.write_bytes(damaged)
    (tmp_path / "current").symlink_to("old")
    confidence = {"slope": 4.0, "intercept": -1.0, "threshold": 0.5, "system": "bm25"}
    about = describe_model(runs["new"] / "finetune" / "model", kind="question answerer")
    confidence["weights_fingerprint"] = about["weights_fingerprint"]
    (runs["new"] / "calibration.json").write_text(json.dumps(confidence))
    (runs["new"] / "fit.json").write_text(json.dumps({"system": "bm25"}))
    return runs, tmp_path / "current"


def point_to(link, run):
    link.with_name("next").symlink_to(run.name)
    link.with_name("next").rename(link)


def test_a_newer_run_takes_over_and_a_broken_one_never_does(newer_runs):
    runs, link = newer_runs
    expected = {}
    for name in ("old", "new"):
        loaded = load_answerer(runs[name], system=chosen_system(runs[name]))
        expected[loaded.weights_fingerprint] = loaded.answer(QUESTIONS[:2])
    old, new = expected
    assert expected[old][0].candidates != expected[new][0].candidates
    flags = [
        "--max-batch",
        2,
        "--watch-seconds",
        0.2,
        "--rate",
        2,
        "--max-questions",
        2,
        "--trust-proxy",
        "127.0.0.1",
    ]
    flags += ["--cors-origins", "https://intranet.example"]
    with serving(link, *flags) as server, ThreadPoolExecutor(1) as pool:
        stop, seen = threading.Event(), []

        def keep_asking():
            while not stop.is_set():
                client = f"10.0.{len(seen) // 250}.{len(seen) % 250}"
                body = {"questions": QUESTIONS[:2]}
                seen.append(server.post("/v1/answers", body, X_Forwarded_For=client))

        asking = pool.submit(keep_asking)
        try:

            def about():
                return server.get("/v1/about").json

            assert about()["weights_fingerprint"] == old
            for broken, said in (("damaged", "fingerprint"), ("nan", "gives no answer")):
                point_to(link, runs[broken])
                wait_until(lambda said=said: said in (about()["last_load_failure"] or ""))
                assert about()["weights_fingerprint"] == old
            link.unlink()  # not even there
            time.sleep(0.5)
            assert about()["weights_fingerprint"] == old
            link.symlink_to("new")
            wait_until(lambda: about()["weights_fingerprint"] == new)
            assert about()["last_load_failure"] is None
            assert about()["calibrated"] is True
            assert about()["system"] == "bm25"
            assert about()["retrievers"] == ["bm25", "dense", "hybrid"]
            # Within one folder too, and at once on SIGHUP.
            loads = server.metrics()["orqa_loads_total", "done"]
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.metrics()["orqa_loads_total", "done"] > loads)
        finally:
            stop.set()
            asking.result()

        assert len(seen) > 5
        assert {reply.status for reply in seen} == {200}
        by = [reply.json["answers"][0]["weights_fingerprint"] for reply in seen]
        assert by == sorted(by, key=[old, new].index)
        assert set(by) == {old, new}
        for reply in seen:
            answers = reply.json["answers"]
            for one, answer in zip(
                answers, expected[answers[0]["weights_fingerprint"]], strict=True
            ):
                calibrated, abstain = one["probability"], one["abstain"]
                agrees(one | {"probability": None, "abstain": None}, answer)
                if one["weights_fingerprint"] == old:
                    assert (calibrated, abstain) == (None, None)
                else:
                    own = one["candidates"][0]["probability"]
                    right = 1 / (1 + np.exp(-(4.0 * own - 1.0)))
                    assert calibrated == pytest.approx(right, rel=1e-6)
                    assert abstain is bool(right < 0.5)
        metrics = server.metrics()
        assert metrics["orqa_loads_total", "failed"] >= 2
        assert metrics["orqa_model", f"{world().store.fingerprint} bm25 {new}"] == 1
        assert ("orqa_model", f"{world().store.fingerprint} orqa {old}") not in metrics

        # Each client has a rate of its own, behind the proxy that is trusted.
        two = {"questions": QUESTIONS[:2]}
        assert server.post("/v1/answers", two, X_Forwarded_For="10.1.0.1").status == 200
        refused = server.post("/v1/answers", two, X_Forwarded_For="10.1.0.1")
        assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_questions")
        assert refused.headers["retry-after"] == "1"
        assert server.post("/v1/answers", two, X_Forwarded_For="10.1.0.2").status == 200
        wait_until(lambda: '"client": "10.1.0.2"' in server.log)

        # The one page elsewhere that may ask, and no other.
        asked = {
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": "content-type",
        }
        allowed = server.send("OPTIONS", "/v1/answer", Origin="https://intranet.example", **asked)
        assert allowed.headers["access-control-allow-origin"] == "https://intranet.example"
        other = server.send("OPTIONS", "/v1/answer", Origin="https://evil.example", **asked)
        assert "access-control-allow-origin" not in other.headers


# --- Starts that fail -----------------------------------------------------------------------------


def test_a_run_that_cannot_be_loaded_ends_the_process_with_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, "serve", str(tmp_path / "none"), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("orqa: There is no finished corpus in ")
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OrqaError, match=rf"Cannot listen on port {port} of 127\.0\.0\.1"):
            serve(ServeConfig(run="r", port=port))
    with pytest.raises(OrqaError, match="--host"):
        serve(ServeConfig(run="r", port=0, host="203.0.113.7"))
    assert logging.getLogger("orqa_jax.serve").propagate


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"port": -1}, "port is -1"),
        ({"port": 65536}, "port is 65536"),
        ({"max_batch": 0}, "max_batch is 0; it has to be at least 1"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms is nan"),
        ({"max_wait_ms": -1.0}, "max_wait_ms is -1"),
        ({"watch_seconds": float("inf")}, "watch_seconds is inf"),
        ({"rate": -0.5}, "rate is -0.5"),
        ({"max_questions": 129}, "more than the 128 of max_queue"),
    ],
)
def test_settings_out_of_range_are_named(changes, said):
    with pytest.raises(OrqaError, match=re.escape(said)):
        ServeConfig(run="r", **changes)
