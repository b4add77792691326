"""The schema's page in docs is the one the code has."""

import json
from pathlib import Path

import jsonschema
import msgspec

from builders import make_record
from decodegap.record import SCHEMA_VERSION, Record
from decodegap.report.schema import schema_page

PAGE = Path(__file__).parents[2] / "docs" / "record_schema.md"


def schema_in(page: str) -> dict:
    return json.loads(page.partition("```json\n")[2].partition("\n```")[0])


def test_the_page_is_the_generated_one():
    assert PAGE.read_text(encoding="utf-8") == schema_page(), "run `make docs`"


def test_the_page_s_schema_takes_a_record_as_it_is_written():
    schema = schema_in(schema_page())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(msgspec.json.encode(make_record())), schema)


def test_the_records_that_ship_validate():
    """By a validator made once: each would check the schema itself again."""
    validator = jsonschema.Draft202012Validator(schema_in(schema_page()))
    paths = sorted((Path(__file__).parents[2] / "results").rglob("2*.json"))
    assert paths
    for path in paths:
        validator.validate(json.loads(path.read_text(encoding="utf-8")))


def test_the_page_tells_the_history_up_to_this_version():
    page = schema_page()
    assert f"This is version {SCHEMA_VERSION}." in page
    history = page.partition("## History")[2].partition("## JSON")[0]
    versions = [line.split()[0] for line in history.splitlines() if line[4:5].isdigit()]
    assert versions == [str(version) for version in range(1, SCHEMA_VERSION + 1)]


def test_every_part_of_a_record_is_described():
    schema = schema_in(schema_page())
    assert schema["$ref"].endswith("Record")
    for name in ("Trial", "Measurement", "Verdict", "Environment", "Profile"):
        assert schema["$defs"][name]["description"], name
        assert schema["$defs"][name]["additionalProperties"] is False, name
    assert set(schema["$defs"]["Record"]["required"]) == {
        field.name for field in msgspec.structs.fields(Record) if field.required
    }
