package browser

import "testing"

// TestHealth checks the certificates and the requests of the page with the health of the control plane.
func TestHealth(t *testing.T) {
	b := newTab(t, serve(t))
	b.open("/health")
	b.see("The API server is ready")
	row := func(table, text string) {
		t.Helper()
		b.until(`[...document.querySelectorAll("` + table + ` tbody tr")].some((r) => r.innerText.match(/` + text + `/))`)
	}
	row(".certificates", `^API server\s.*\d+ days$`)
	row(".certificates", `^you\s.*\d+ days$`)
	row(".requests", `^leases\S*\s.*PUT \d+`)
	b.shot("health")
	b.clean()
}
