"""The algorithms for what comes after the map: clean it, say how good it is, compare it, measure it by polygon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qgis.core import (
    QgsProcessingException,
    QgsProcessingParameterBoolean,
    QgsProcessingParameterEnum,
    QgsProcessingParameterField,
    QgsProcessingParameterFileDestination,
    QgsProcessingParameterNumber,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterVectorDestination,
    QgsProcessingParameterVectorLayer,
)

from .algorithm import CommandAlgorithm, Step
from .command import CHANGE_SHARES, MAP, arguments
from .parameters import POINTS, POLYGONS, REAL, Values, optional_file, probability
from .style import style_samples, style_zones


def _choice(name: str, description: str, *options: str) -> Any:
    return QgsProcessingParameterEnum(
        name, description, options=list(options), defaultValue=options[0], usesStaticStrings=True
    )


class CleanMap(CommandAlgorithm):
    """Smooths a map and absorbs patches that are too small."""

    NAME, TITLE = "cleanmap", "Clean map"
    HELP = (
        "Removes speckle from a map of classes. Names and colours stay.\n\n"
        "Majority: each pixel takes the most common class of the square that reaches so many pixels in each "
        "direction; 0 does not smooth. This comes first.\n"
        "Minimum mapping unit: a patch below so many square metres takes the class that it has the longest border "
        "with; 0 leaves all patches.\n\n"
        "A run that was cancelled leaves nothing behind, and starts from the beginning the next time."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Map"),
            QgsProcessingParameterNumber("MAJORITY", "Majority, pixels", defaultValue=1, minValue=0),
            QgsProcessingParameterNumber(
                "SIEVE", "Minimum mapping unit, m²", REAL, defaultValue=0.0, minValue=0.0
            ),
            QgsProcessingParameterRasterDestination("OUTPUT", "Clean map"),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        options = arguments(
            "clean",
            values.raster("INPUT"),
            values.output_layer("OUTPUT"),
            majority=values.integer("MAJORITY"),
            sieve=values.real("SIEVE"),
        )
        yield Step(MAP, options, {})


class DrawSample(CommandAlgorithm):
    """Draws random places of a map, to be labelled."""

    NAME, TITLE = "drawsample", "Draw sample"
    HELP = (
        "Draws random places of a map, stratified by its classes, of which a person then says what is there. With "
        "them, Assess map says how good the map is.\n\n"
        "Look at the image, not at the map, and choose the class of each place in its form: the names are those of "
        "the map. Leave a place empty if you cannot see its class. The file does not contain the class of the map.\n\n"
        "The log says how many places come from which class, and how sure you may expect to be. Another seed draws "
        "other places. A file that exists is not replaced, because it may hold labels."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Map"),
            QgsProcessingParameterNumber("COUNT", "Number of places", defaultValue=300, minValue=1),
            QgsProcessingParameterNumber("SEED", "Seed", defaultValue=0, minValue=0),
            QgsProcessingParameterVectorDestination("OUTPUT", "Sample", POINTS),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        out = values.output_layer("OUTPUT")
        if Path(out).exists():
            raise QgsProcessingException(f"{out} exists, perhaps with labels; give another name.")
        options = arguments(
            "assess",
            values.raster("INPUT"),
            out,
            draw=values.integer("COUNT"),
            seed=values.integer("SEED"),
        )
        yield Step(MAP, options, {})

    def style(self, values: Values) -> None:
        """Colour places by their label, and offer the names of the map in the form."""
        style_samples(values.outputs["OUTPUT"], values.raster("INPUT"))


class AssessMap(CommandAlgorithm):
    """Says how good a map is, from labelled random places."""

    NAME, TITLE = "assessmap", "Assess map"
    HELP = (
        "Says how good a map is, from random places of which a person has said what is there (Draw sample): overall, "
        "user's and producer's accuracy, and the area of each class on the ground, with 95 % confidence intervals. "
        "The log has the figures, and the report shows them as a page.\n\n"
        "Class field: if empty, the only field, or the one named class. Places without a class are left out.\n"
        "Design: stratified fits samples drawn from this map and places drawn anywhere at random; simple is for the "
        "latter only. Clicks where somebody liked to click are neither."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Map"),
            QgsProcessingParameterVectorLayer("SAMPLES", "Sample", [POINTS]),
            QgsProcessingParameterField(
                "FIELD", "Class field", parentLayerParameterName="SAMPLES", optional=True
            ),
            _choice("DESIGN", "Design", "stratified", "simple"),
            QgsProcessingParameterFileDestination("OUTPUT", "Report", fileFilter="HTML files (*.html)"),
            optional_file("CSV", "Figures as CSV", "CSV files (*.csv)"),
            optional_file("JSON", "Figures as JSON", "JSON files (*.json)"),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        options = arguments(
            "assess",
            values.raster("INPUT"),
            values.vector("SAMPLES"),
            label_field=values.text("FIELD"),
            design=values.choice("DESIGN"),
            report=[values.output_file(name) for name in ("OUTPUT", "CSV", "JSON")],
        )
        yield Step(MAP, options, {})


class ChangeMap(CommandAlgorithm):
    """Compares two maps."""

    NAME, TITLE = "changemap", "Change between maps"
    HELP = (
        "Compares two maps with the same classes: a map of what became what, pale where nothing has changed. The log "
        "says what each class had, has, gained and lost.\n\n"
        "The maps may have different grids, extents and CRS. They are compared on the grid of the one with the "
        "smaller pixels, or on that of another raster.\n"
        "Leave out unsure pixels: those of the class unsure in either map.\n"
        "Minimum confidence: pixels whose confidence is lower are left out; give one of the confidence maps or both.\n"
        "Table: the area of each change in hectares, .csv or .json.\n\n"
        "A change map is less accurate than the maps it comes from: draw a sample from it, and report the areas that "
        "Assess map estimates."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("BEFORE", "Earlier map"),
            QgsProcessingParameterRasterLayer("AFTER", "Later map"),
            QgsProcessingParameterRasterLayer("LIKE", "Compare on the grid of", optional=True),
            QgsProcessingParameterBoolean("SKIP_UNSURE", "Leave out unsure pixels", defaultValue=False),
            QgsProcessingParameterRasterLayer(
                "BEFORE_CONFIDENCE", "Confidence of the earlier map", optional=True
            ),
            QgsProcessingParameterRasterLayer(
                "AFTER_CONFIDENCE", "Confidence of the later map", optional=True
            ),
            probability("MIN_CONFIDENCE", "Minimum confidence"),
            QgsProcessingParameterRasterDestination("OUTPUT", "Change"),
            optional_file("TABLE", "Table", "CSV files (*.csv);;JSON files (*.json)"),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        options = arguments(
            "change",
            values.raster("BEFORE"),
            values.raster("AFTER"),
            values.output_layer("OUTPUT"),
            table=values.output_file("TABLE"),
            like=values.raster("LIKE"),
            skip_unsure=values.flag("SKIP_UNSURE"),
            before_confidence=values.raster("BEFORE_CONFIDENCE"),
            after_confidence=values.raster("AFTER_CONFIDENCE"),
            min_confidence=values.real("MIN_CONFIDENCE"),
        )
        yield Step(MAP, options, CHANGE_SHARES)


class PolygonStatistics(CommandAlgorithm):
    """Measures the area of each class in each polygon."""

    NAME, TITLE = "polygonstatistics", "Areas by polygon"
    HELP = (
        "Measures the hectares of each class of a map in each polygon (parcels, districts, catchments). The result "
        "has the polygons with their fields, a field per class, the area without data, and the share of the polygon "
        "that lies on pixels with data. It is coloured by the class with the largest area.\n\n"
        "Pixels on borders: share counts them by the exact share that lies inside, centre whole if their centre does."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Map"),
            QgsProcessingParameterVectorLayer("ZONES", "Polygons", [POLYGONS]),
            _choice("PARTIAL_PIXELS", "Pixels on borders", "share", "centre"),
            QgsProcessingParameterVectorDestination("OUTPUT", "Areas", POLYGONS),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        options = arguments(
            "stats",
            values.raster("INPUT"),
            values.vector("ZONES"),
            values.output_layer("OUTPUT"),
            partial_pixels=values.choice("PARTIAL_PIXELS"),
        )
        yield Step(MAP, options, {})

    def style(self, values: Values) -> None:
        """Colour polygons by the class with the largest area."""
        style_zones(values.outputs["OUTPUT"], values.raster("INPUT"))
