package browser

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// fetch returns the body of the response at a URL.
func fetch(t *testing.T, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return string(data), err
}

// TestForward forwards ports to a pod and to a Service, uses them, stops one, and deletes the pod of the other.
func TestForward(t *testing.T) {
	deploy(t)
	b := newTab(t, serve(t))
	b.open("/r/core/v1/services/default/web")
	b.see("Port forwarding")
	b.click(".forwarding button", "Forward")
	b.until(`document.querySelector(".forwarding td a")`)
	free := b.eval(`document.querySelector(".forwarding td a").href`)
	want, err := fetch(t, free)
	if err != nil || want == "" {
		t.Fatalf("the forward to the Service: %q %v", want, err)
	}
	b.shot("forward-service")

	pod := strings.TrimSpace(kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	b.open("/r/core/v1/pods/default/" + pod)
	b.fill(".forwarding [name=local]", fmt.Sprint(port))
	b.click(".forwarding button", "Forward")
	b.see("address already in use")
	l.Close()
	for _, p := range b.taken() {
		if !strings.Contains(p, "422") {
			t.Errorf("the browser logged: %s", p)
		}
	}
	b.click(".forwarding button", "Forward")
	b.until(fmt.Sprintf(`document.querySelector('.forwarding a[href="http://127.0.0.1:%d/"]')`, port))
	chosen := fmt.Sprintf("http://127.0.0.1:%d/", port)
	if _, err := fetch(t, chosen); err != nil {
		t.Errorf("the forward to the pod: %v", err)
	}

	b.open("/forwards")
	b.see("Service default/web")
	b.see("Pod default/" + pod)
	b.click(fmt.Sprintf(`button[aria-label="Stop 127.0.0.1:%d"]`, port), "Stop")
	b.until(fmt.Sprintf(`!document.body.innerText.includes("127.0.0.1:%d")`, port))
	if _, err := fetch(t, chosen); err == nil {
		t.Error("the stopped forward accepts connections")
	}
	if _, err := fetch(t, free); err != nil {
		t.Errorf("the other forward after one was stopped: %v", err)
	}
	kubectl(t, "delete", "pods", "-l", "app=web")
	_, _ = fetch(t, free) // the forward notices that the pod is deleted, at the latest with this connection
	b.see("Stopped:")
	b.click("button", "Remove")
	b.see("No port is forwarded.")
	b.clean()
}
