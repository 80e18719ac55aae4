//! Expressions that say whether people can read a page.

/// The minimum contrast of text by WCAG 2 at level AA.
pub(crate) const CONTRAST_MIN: f64 = 4.5;

/// By how many pixels the page is wider than its window.
pub(crate) const OVERFLOW: &str =
    "document.documentElement.scrollWidth - document.documentElement.clientWidth";

/// The text on the page with the lowest contrast to its background, and that contrast.
pub(crate) const LEAST_CONTRAST: &str = r#"(() => {
    const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [.2126, .7152, .0722][at], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parts(getComputedStyle(at).backgroundColor);
            if (colour[3] === undefined || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    document.querySelectorAll('details').forEach((details) => { details.open = true; });
    let least = [21, "no text"];
    for (const element of document.querySelectorAll('body *:not(script)')) {
        const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
        const words = own.map((node) => node.textContent.trim()).join(' ');
        if (!words.trim() || !element.getClientRects().length) continue;
        const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
        const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (contrast < least[0]) least = [contrast, words];
    }
    return least;
})()"#;
