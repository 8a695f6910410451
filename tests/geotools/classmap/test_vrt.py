from xml.etree import ElementTree as ET

import pytest

from iic_geotools.classmap.vrt import xml_attribute, xml_text


@pytest.mark.parametrize(
    "text", ["", "plain", "a < b & c > d", "\"both\" 'quotes'", "lines\nand\ttabs", "Wörter & Zeichen"]
)
def test_any_text_comes_through_xml(text: str) -> None:
    element = ET.fromstring(f"<a b={xml_attribute(text)}>{xml_text(text)}</a>")
    assert element.get("b") == text
    assert (element.text or "") == text
