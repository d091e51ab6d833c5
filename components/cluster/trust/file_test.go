package trust

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/pki"
)

// fileOf writes a kubeconfig of a cluster, and of a user if there is something to say of one.
func fileOf(t *testing.T, cluster, user string) string {
	t.Helper()
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {" + cluster + "}}]\n"
	if user != "" {
		text += "users: [{name: u, user: {" + user + "}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	}
	path := filepath.Join(t.TempDir(), "discovery.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func inFile(endpoint string, ca []byte) string {
	return fmt.Sprintf("server: https://%s, certificate-authority-data: %s", endpoint, base64.StdEncoding.EncodeToString(ca))
}

// TestFindByFile: who gave the file is believed, without a token and a hash, and nobody else is.
func TestFindByFile(t *testing.T) {
	told, set, info := master(t)
	var d Discovery
	if err := d.LoadFile(t.Context(), fileOf(t, inFile(told.Endpoint, set.CA.CertPEM), "")); err != nil {
		t.Fatal(err)
	}
	c, err := d.Find(t.Context())
	if err != nil || c.Server != "https://"+told.Endpoint || string(c.CA) != string(set.CA.CertPEM) || d.EntersByFile() {
		t.Errorf("found %+v, %v", c, err)
	}
	// The authority may be in a file beside it.
	path := fileOf(t, fmt.Sprintf("server: https://%s, certificate-authority: ca.crt", told.Endpoint), "")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "ca.crt"), set.CA.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.LoadFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Find(t.Context()); err != nil || string(c.CA) != string(set.CA.CertPEM) {
		t.Errorf("with the authority in a file: %+v, %v", c, err)
	}
	// A cluster that tells strangers nothing of itself is verified all the same.
	info.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	other, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.LoadFile(t.Context(), fileOf(t, inFile(told.Endpoint, other.CA.CertPEM), "")); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "not verified") {
		t.Errorf("by another authority: %+v, %v", c, err)
	}
}

// TestDiscoveryFiles: what the file says to enter the cluster with is used where no token is
// given, and files that would have anybody believed are refused.
func TestDiscoveryFiles(t *testing.T) {
	var d Discovery
	if err := d.LoadFile(t.Context(), fileOf(t, "server: https://192.0.2.1:6443", "token: secret")); err != nil || !d.EntersByFile() || d.Endpoint != "192.0.2.1:6443" {
		t.Fatalf("%+v, %v", d, err)
	}
	beside := fileOf(t, "server: https://192.0.2.1:6443", "tokenFile: token")
	if err := os.WriteFile(filepath.Join(filepath.Dir(beside), "token"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = Discovery{}
	if err := d.LoadFile(t.Context(), beside); err != nil || !d.EntersByFile() {
		t.Fatalf("with the token in a file: %+v, %v", d, err)
	}
	token := NewToken()
	for want, with := range map[string]Token{"secret": {}, token.String(): token} {
		if rc, err := d.file.REST(with); err != nil || rc.BearerToken != want {
			t.Errorf("enters with %+v, %v; want %s", rc, err, want)
		}
	}
	for want, from := range map[string]string{
		"whoever answers would be believed":    fileOf(t, "server: https://192.0.2.1:6443, insecure-skip-tls-verify: true", ""),
		"is no URL of https":                   fileOf(t, "server: http://192.0.2.1:8080", ""),
		"no such file":                         filepath.Join(t.TempDir(), "none"),
		"give a file, or a URL of https":       "http://192.0.2.1/cluster",
		"names no cluster":                     fileOf(t, "", ""),
		"no such file or directory":            fileOf(t, "server: https://192.0.2.1:6443, certificate-authority: none.crt", ""),
		"asking where the cluster is: Get \"h": "https://127.0.0.1:1/cluster",
		"reading the token: open":              fileOf(t, "server: https://192.0.2.1:6443", "tokenFile: none"),
	} {
		if err := d.LoadFile(t.Context(), from); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", from, err, want)
		}
	}
}

// TestFetchRedirected: a URL of https may lead to another such, and nowhere else.
func TestFetchRedirected(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "forged") }))
	defer plain.Close()
	mux := http.NewServeMux()
	mux.Handle("/plain", http.RedirectHandler(plain.URL, http.StatusFound))
	mux.Handle("/moved", http.RedirectHandler("/here", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	mux.HandleFunc("/here", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "told") })
	verified := httptest.NewTLSServer(mux)
	defer verified.Close()
	if data, err := fetch(t.Context(), *verified.Client(), verified.URL+"/moved"); err != nil || string(data) != "told" {
		t.Errorf("to another: %q, %v", data, err)
	}
	for path, want := range map[string]error{"/plain": errUnverified, "/round": errRedirects} {
		if data, err := fetch(t.Context(), *verified.Client(), verified.URL+path); !errors.Is(err, want) {
			t.Errorf("%s: %q, %v; want %v", path, data, err, want)
		}
	}
}
