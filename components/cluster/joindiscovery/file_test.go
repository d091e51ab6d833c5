package joindiscovery

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

	"hyperkube/internal/credentials/pki"
)

// fileOf writes a kubeconfig of a cluster, with a user unless that is empty.
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

// TestFindByFile: a discovery file is trusted without a token and a hash. Other servers are not.
func TestFindByFile(t *testing.T) {
	target, set, info := serveCluster(t)
	var d Discovery
	if err := d.LoadFile(t.Context(), fileOf(t, inFile(target.Endpoint, set.CA.CertPEM), "")); err != nil {
		t.Fatal(err)
	}
	c, err := d.Find(t.Context())
	if err != nil || c.Server != "https://"+target.Endpoint || string(c.CA) != string(set.CA.CertPEM) || d.HasFileCredentials() {
		t.Errorf("found %+v, %v", c, err)
	}
	// The CA may be in a separate file.
	path := fileOf(t, fmt.Sprintf("server: https://%s, certificate-authority: ca.crt", target.Endpoint), "")
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "ca.crt"), set.CA.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.LoadFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Find(t.Context()); err != nil || string(c.CA) != string(set.CA.CertPEM) {
		t.Errorf("with the CA in a file: %+v, %v", c, err)
	}
	// A cluster whose cluster-info cannot be read without credentials is verified as well.
	info.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	other, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.LoadFile(t.Context(), fileOf(t, inFile(target.Endpoint, other.CA.CertPEM), "")); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "verifying the API server") {
		t.Errorf("with another CA: %+v, %v", c, err)
	}
}

// TestDiscoveryFiles: credentials in the file are used if there is no token. Files that do not
// verify the server are refused.
func TestDiscoveryFiles(t *testing.T) {
	var d Discovery
	if err := d.LoadFile(t.Context(), fileOf(t, "server: https://192.0.2.1:6443", "token: secret")); err != nil || !d.HasFileCredentials() || d.Endpoint != "192.0.2.1:6443" {
		t.Fatalf("%+v, %v", d, err)
	}
	tokenInFile := fileOf(t, "server: https://192.0.2.1:6443", "tokenFile: token")
	if err := os.WriteFile(filepath.Join(filepath.Dir(tokenInFile), "token"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = Discovery{}
	if err := d.LoadFile(t.Context(), tokenInFile); err != nil || !d.HasFileCredentials() {
		t.Fatalf("with the token in a file: %+v, %v", d, err)
	}
	token := NewToken()
	for want, with := range map[string]Token{"secret": {}, token.String(): token} {
		if rc, err := d.file.RESTConfig(with); err != nil || rc.BearerToken != want {
			t.Errorf("authenticates with %+v, %v; want %s", rc, err, want)
		}
	}
	for want, from := range map[string]string{
		"insecure-skip-tls-verify is set":     fileOf(t, "server: https://192.0.2.1:6443, insecure-skip-tls-verify: true", ""),
		"is not an https URL":                 fileOf(t, "server: http://192.0.2.1:8080", ""),
		"no such file":                        filepath.Join(t.TempDir(), "none"),
		"use a file or an https URL":          "http://192.0.2.1/cluster",
		"no cluster found":                    fileOf(t, "", ""),
		"no such file or directory":           fileOf(t, "server: https://192.0.2.1:6443, certificate-authority: none.crt", ""),
		"downloading discovery file: Get \"h": "https://127.0.0.1:1/cluster",
		"reading token file: open":            fileOf(t, "server: https://192.0.2.1:6443", "tokenFile: none"),
	} {
		if err := d.LoadFile(t.Context(), from); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", from, err, want)
		}
	}
}

// TestFetchRedirected: redirects of an https URL are followed only to https URLs.
func TestFetchRedirected(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "forged") }))
	defer plain.Close()
	mux := http.NewServeMux()
	mux.Handle("/plain", http.RedirectHandler(plain.URL, http.StatusFound))
	mux.Handle("/moved", http.RedirectHandler("/here", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	mux.HandleFunc("/here", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "content") })
	verified := httptest.NewTLSServer(mux)
	defer verified.Close()
	if data, err := fetch(t.Context(), *verified.Client(), verified.URL+"/moved"); err != nil || string(data) != "content" {
		t.Errorf("redirect to https: %q, %v", data, err)
	}
	for path, want := range map[string]error{"/plain": errInsecureURL, "/round": errRedirects} {
		if data, err := fetch(t.Context(), *verified.Client(), verified.URL+path); !errors.Is(err, want) {
			t.Errorf("%s: %q, %v; want %v", path, data, err, want)
		}
	}
}
