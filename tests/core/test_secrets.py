"""Secrets are found by form and by name, and what only looks like one stays."""

import time

import pytest

from jupyter_dtrain.core.secrets import (
    REDACTED,
    environment_secrets,
    is_secret_file,
    is_secret_name,
    redact,
    redact_command,
    redact_value,
)

HIDDEN = "hunter2horse"


@pytest.mark.parametrize(
    "text",
    [
        f'api_key = "sk-{HIDDEN}"',
        f"x = 'sk-proj-{HIDDEN}12345678'",
        f"x = 'hf_{HIDDEN}ABCDEF'",
        f"+x = 'ghp_{HIDDEN}ABCDEFGH'",
        f"slack xoxb-1234-{HIDDEN}",
        f"AIza{HIDDEN}ABCDEFGHIJKLMNOPQRSTUV",
        f"eyJhbGciOiJI.eyJ{HIDDEN}.abc{HIDDEN}",
        f"-----BEGIN RSA PRIVATE KEY-----\n+{HIDDEN}\n+{HIDDEN}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{HIDDEN}",
        f"https://me:{HIDDEN}@example.org/a.git",
        f"https://{HIDDEN}0123456789@example.org/a.git",
        f"Authorization: Bearer {HIDDEN}",
        f"DB_PASSWORD={HIDDEN}",
        f"+export DB_PASSWORD={HIDDEN} and more({HIDDEN}",
        f"password: {HIDDEN}",
        f"host=here password={HIDDEN} port=5",
        f'{{"client_secret": "{HIDDEN}"}}',
        f'os.environ["WANDB_API_KEY"] = "{HIDDEN}"',
        f'os.environ.setdefault("HF_TOKEN", "{HIDDEN}")',
        f'def f(token: str | None = "{HIDDEN}"):',
        f"login(key='{HIDDEN}0123456789abcdef0123456789')",
        f'PASSWORD = """{HIDDEN}"""',
        f"train.py --hub-token {HIDDEN}",
        f"train.py --hub-token={HIDDEN}",
        f"https://example.org/?token={HIDDEN}&a=1",
    ],
)
def test_a_secret_is_redacted(text: str) -> None:
    assert HIDDEN not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer = AutoTokenizer.from_pretrained(name)",
        "token = next_token",
        "token = batch['input']",
        "password = getpass()",
        "api_key = os.environ['KEY']",
        "def f(token: Tensor, secret: str) -> None:",
        "f(\n    token=token,\n    api_key=settings.api_key)",
        'pad_token="<pad>", max_tokens=128, n_tokens: 12',
        "key = 'validation'",
        "index 039a0506369ca0e23bb9c470de92ad344290dd42..100644",
        "http://localhost:8888/lab?path=a@b",
        "task-0123456789abcdef, disk-usage, risk-free-investment",
        "token: 17",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_names() -> None:
    secrets = ["api_key", "apiKey", "OPENAI_API_KEY", "hub_token", "token", "db-password", "client_secret", "passwd"]
    others = [
        "key",
        "pad_token",
        "tokens",
        "max_tokens",
        "tokenizer",
        "token_ids",
        "keyword",
        "loss_per_token",
        "lr",
        "",
    ]
    assert all(map(is_secret_name, secrets))
    assert not any(map(is_secret_name, others))


def test_values_lose_secrets_at_any_depth() -> None:
    found = redact_value("config", {"lr": 0.1, "hub": {"token": HIDDEN, "url": [f"x://u:{HIDDEN}@h"]}, "on": True})
    assert HIDDEN not in str(found)
    assert found["lr"] == 0.1
    assert found["on"] is True
    assert redact_value("password", 123456) == REDACTED
    assert redact_value("token", None) is None


def test_commands_lose_the_values_of_options() -> None:
    found = redact_command(["train.py", "--api-key", HIDDEN, "--lr", "0.1", f"--token={HIDDEN}"])
    assert found == ["train.py", "--api-key", REDACTED, "--lr", "0.1", f"--token={REDACTED}"]


def test_a_secret_of_the_environment_is_found_in_any_text() -> None:
    known = environment_secrets([("MY_API_KEY", HIDDEN), ("PWD", "/"), ("OLDPWD", "/dev/null"), ("TOKEN", "a")])
    assert redact(f"It is {HIDDEN} in /dev/null", known) == f"It is {REDACTED} in /dev/null"


def test_files() -> None:
    assert all(map(is_secret_file, [".env", "a/.env.local", "id_rsa.pub", "b.key", "aws/credentials", ".netrc"]))
    assert not any(map(is_secret_file, ["env.py", "keys.py", "train.py", "environment.yml", "core/secrets.py"]))


PIECES = ("a", "a=", "a:'", 'token="', "password:", "a.b-", "-----BEGIN PRIVATE KEY", "://a:", "key=", "key='", "key=$")


@pytest.mark.parametrize("piece", PIECES)
def test_the_time_grows_with_the_length_alone(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        begin = time.process_time()
        redact(text)
        return time.process_time() - begin

    small = max(seconds(50_000), 0.005)
    assert seconds(400_000) < 30 * small


def test_a_long_secret_is_left_out_as_a_whole() -> None:
    long = "ab1-" * 500
    assert redact(f"password:{long}\nx") == f"password:{REDACTED}\nx"
    assert redact(f"f(password='{long}', x=1)") == f"f(password='{REDACTED}', x=1)"
