from .exporter import Exported as Exported
from .exporter import export as export

__version__: str
