// Libraries add style sheets as style elements, which the Content-Security-Policy of the page blocks. The generator of the
// bundle replaces these elements by this one, which adds its text as a constructed style sheet.
class SheetElement extends HTMLElement {
  private readonly sheet = new CSSStyleSheet();

  override get textContent(): string {
    return "";
  }

  override set textContent(css: string | null) {
    this.sheet.replaceSync(css ?? "");
  }

  connectedCallback(): void {
    if (!document.adoptedStyleSheets.includes(this.sheet)) {
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, this.sheet];
    }
  }

  disconnectedCallback(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== this.sheet);
  }
}

if (!customElements.get("style-sheet")) customElements.define("style-sheet", SheetElement);
