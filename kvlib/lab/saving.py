"""What the Jupyter server does for the course when a notebook is saved; it runs this file by itself.

A saved notebook keeps no running panel: reopened, JupyterLab would show "Error displaying widget:
model not found" in each one's place. So where an output also has a picture or words, these are saved
alone. Saving the widgets' state instead would show panels whose buttons do nothing, in a file several
times the size.
"""

WIDGET = "application/vnd.jupyter.widget-view+json"
AGAIN = "Run this cell again to use this panel."


def keep_pictures(model, **kwargs) -> None:
    """Drop the widget of every output that also has a picture or words, and say how to get it back."""
    if model.get("type") != "notebook" or not isinstance(model.get("content"), dict):
        return
    if "widgets" in model["content"].get("metadata", {}):  # the widgets' state is saved: they will be found
        return
    for cell in model["content"].get("cells", []):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if WIDGET not in data or len(data) == 1:
                continue
            del data[WIDGET]
            if "text/html" not in data:
                words = data.get("text/plain", "")
                words = words if isinstance(words, str) else "".join(words)
                data["text/plain"] = f"{words}\n\n{AGAIN}"
