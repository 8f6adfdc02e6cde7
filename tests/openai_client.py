"""Talks to a gateway with OpenAI's own client. Started by tests/gateway/openai.rs; the pipeline does what its prompt says.

Ends with status 0 if all is as an OpenAI user expects. Before the end it closes streams in the middle, prints `closed`, and waits
for the end of its input, while the other side looks whether the requests were cancelled.
"""

import asyncio
import os
import sys

import openai

BASE_URL, API_KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=20)
TEXT = 'Grüße,\n "you"'


def chat(prompt, with_client=client, **more):
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": prompt}]
    return with_client.chat.completions.create(model="fake", messages=messages, **more)


def expect(error_class, status, code, call):
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is error_class, (type(error), error_class)
        assert error.status_code == status, (error.status_code, status)
        assert error.code == code, (error.code, code)
        assert isinstance(error.body, dict) and error.body["message"], error.body
        return error
    raise AssertionError(f"no {error_class}")


def models():
    assert [model.id for model in client.models.list()] == ["fake", "other"]
    model = client.models.retrieve("fake")
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "stageline")
    assert model.created > 1_700_000_000
    expect(openai.NotFoundError, 404, "model_not_found", lambda: client.models.retrieve("none"))


def whole_answers():
    answer = chat("hi", temperature=0, max_completion_tokens=9, seed=7, stop=["\n\n"], user="someone")
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion", answer
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 3, 6)

    answer = client.completions.create(model="fake", prompt="length", max_tokens=1)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion", answer
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("cut sho", "length")


def streams():
    chunks = list(chat("hi", stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 6
    assert len({chunk.id for chunk in chunks}) == 1

    chunks = list(client.completions.create(model="fake", prompt="hi", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"

    # The client's own helper puts the chunks together again, and is strict about them.
    with client.chat.completions.stream(model="fake", messages=[{"role": "user", "content": "hi"}]) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == TEXT


def errors():
    for code, error_class, status, shown in [
        ("context-overflow", openai.BadRequestError, 400, "context_length_exceeded"),
        ("forbidden", openai.PermissionDeniedError, 403, "forbidden"),
        ("busy", openai.RateLimitError, 429, "busy"),
        ("internal", openai.InternalServerError, 500, "internal_error"),
        ("stage-down", openai.InternalServerError, 503, "stage_down"),
        ("deadline-exceeded", openai.InternalServerError, 504, "deadline_exceeded"),
    ]:
        expect(error_class, status, shown, lambda: chat(f"refuse {code}"))
        expect(error_class, status, shown, lambda: chat(f"fail-first {code}", stream=True))

    error = expect(openai.BadRequestError, 400, "unsupported_parameter", lambda: chat("hi", n=2))
    assert error.param == "n"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    error = expect(openai.BadRequestError, 400, "unsupported_parameter", lambda: chat("hi", tools=[tool]))
    assert error.param == "tools"
    stranger = client.with_options(api_key="sk-wrong")
    expect(openai.AuthenticationError, 401, "invalid_api_key", lambda: chat("hi", stranger))

    seen = []
    try:
        for chunk in chat("fail-later stage-down", stream=True):
            seen.append(chunk.choices[0].delta.content)
    except openai.APIError as error:
        assert error.code == "stage_down" and "stage.fake[0]" in error.message, error
    else:
        raise AssertionError("a stream that broke off looked whole")
    assert seen == ["", "a"], seen


def retries():
    assert chat("busy-once", client.with_options(max_retries=1)).choices[0].message.content == TEXT
    # A late answer is not asked for again: it would take as long.
    expect(
        openai.InternalServerError,
        504,
        "deadline_exceeded",
        lambda: chat("refuse deadline-exceeded", client.with_options(max_retries=5)),
    )


async def close_in_the_middle():
    stream = chat("text-wait", stream=True)
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    stream.close()

    other = openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=20)
    stream = await chat("text-wait", other, stream=True)
    async for _ in stream:
        break
    await stream.close()

    # Given up before there is anything to close.
    try:
        await chat("wait", other.with_options(timeout=0.3))
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("no time-out")


for check in [models, whole_answers, streams, errors, retries]:
    check()
    print(check.__name__, flush=True)
asyncio.run(close_in_the_middle())
print("closed", flush=True)
sys.stdin.read()
