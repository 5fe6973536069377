"""Sphinx's configuration of the documentation site; `build.py` runs it with `-D version=...`."""

project = "nvte"
author = "the authors of nvte"
html_title = "nvte"
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}
exclude_patterns = []
highlight_language = "none"
add_function_parentheses = False
# Long parameter lists have a line for each parameter.
maximum_signature_line_length = 90
toc_object_entries = False
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    """Keeps parameters out of the search: hundreds of functions have one named `stream`."""
    from sphinx.domains.c import CDomain

    objects = CDomain.get_objects
    CDomain.get_objects = lambda self: (found for found in objects(self) if found[2] != "functionParam")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
