import pytest

from iic_geotools.errors import AssumptionWarning, SceneError, UnexpectedError, redact

SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "https://user:hunter2@example.org/a.tif is not a raster.",
        "The scene (https://example.org/a.tif?se=2026&sig=hunter2); check the address.",
        "'/vsicurl/https://example.org/a.tif?X-Amz-Signature=hunter2' does not exist",
        "/vsicurl?empty_dir=yes&url=https%3A%2F%2Fexample.org%2Fa.tif%3Fsig%3Dhunter2 is missing",
        "/vsicurl/https%3A%2F%2Fuser%3Ahunter2%40example.org%2Fa.tif is missing",
        "<ServerUrl>https://example.org/wms?key=hunter2</ServerUrl>",
        "PG:host=example.org password=hunter2 dbname=x",
        "zip+https://user:hunter2@example.org/a.zip!b.tif",
        "There is no file https:/user:hunter2@example.org/a.tif: check the path.",
        "There is no file https:/example.org/a.tif?key=hunter2: check the path.",
        "/vsicurl?max_retry=1&url=https://example.org/a.tif%3Fkey=hunter2 is missing",
    ],
)
def test_secrets_in_addresses_are_hidden(text: str) -> None:
    assert SECRET in text
    for message in (redact(text), *map(str, (SceneError(text), AssumptionWarning(text)))):
        assert SECRET not in message
        assert "example.org" in message
    assert SECRET not in str(UnexpectedError.of(ValueError(text)))


@pytest.mark.parametrize(
    "text",
    [
        "There is no file a@b.tif: check the path.",
        "There is no file C:/a@b.tif: check the path.",
        "Is there a file? Check https://example.org/a@b/c.tif.",
        "`size` must be at least 8, not 3.",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_sentences_end_as_they_did() -> None:
    text = "It (https://example.org/a?sig=x); check it."
    assert redact(text) == "It (https://example.org/a?***); check it."
