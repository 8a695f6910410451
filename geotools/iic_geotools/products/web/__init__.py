"""A scene and its map as one page for a browser: `page` writes it, `viewer.js` and `viewer.css` are part of it."""
