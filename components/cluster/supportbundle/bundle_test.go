package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/host/layout"
)

// The credentials in the inputs of the tests.
const (
	password   = "correct-Horse7battery"
	jwt        = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06c2EifQ.c2lnbmF0dXJl"
	bootstrap  = "abcdef.0123456789abcdef"
	privateKey = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBxkeymaterial\n-----END EC PRIVATE KEY-----"
)

// secrets are all of them, also encoded.
func secrets() []string {
	return []string{password, jwt, bootstrap, "keymaterial", base64.StdEncoding.EncodeToString([]byte(password)), base64.StdEncoding.EncodeToString([]byte(privateKey))}
}

// expectNone checks that text contains no credential.
func expectNone(t *testing.T, what, text string) {
	t.Helper()
	for _, s := range secrets() {
		if strings.Contains(text, s) {
			t.Errorf("%s contains %q:\n%s", what, s, text)
		}
	}
}

func TestRedactText(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "I1 pod started pod=default/web\n", "I1 pod started pod=default/web\n"},
		{"header", "Authorization: Bearer " + jwt + "\n", "Authorization: Bearer REDACTED\n"},
		{"header in text", "request with Bearer opaque-token-value sent", "request with Bearer REDACTED sent"},
		{"JWT", "the token " + jwt + " is invalid", "the token REDACTED is invalid"},
		{"bootstrap token", "kubeadm join --token " + bootstrap + " 1.2.3.4:6443", "kubeadm join --token REDACTED 1.2.3.4:6443"},
		{"key", "before\n" + privateKey + "\nafter", "before\nREDACTED\nafter"},
		{"truncated key", "before\n" + privateKey[:60], "before\nREDACTED"},
		{"escaped key", `{"key":"` + strings.ReplaceAll(privateKey, "\n", `\n`) + `"}`, `{"key":"REDACTED"}`},
		{"encoded key", "client-key-data: " + base64.StdEncoding.EncodeToString([]byte(privateKey)), "client-key-data: REDACTED"},
		{"encoded certificate", "ca-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t", "ca-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"},
		{"URL", "pulling https://user:" + password + "@registry.example/v2/", "pulling https://REDACTED@registry.example/v2/"},
		{"assignment", "DB_PASSWORD=" + password + " HOME=/root", "DB_PASSWORD=REDACTED HOME=/root"},
		{"YAML", "auth:\n  username: puller\n  password: " + password + "\n", "auth:\n  username: puller\n  password: REDACTED\n"},
		{"JSON", `{"apiKey": "` + password + `", "b": 1}`, `{"apiKey": "REDACTED", "b": 1}`},
		{"escaped JSON", `config="{\"password\":\"` + password + `\"}"`, `config="{\"password\":\"REDACTED\"}"`},
		{"flag", "--db-password=" + password + " --v=2", "--db-password=REDACTED --v=2"},
		{"docker", `{"auths":{"r":{"auth":"dXNlcjpwYXNz"}}}`, `{"auths":{"r":{"auth":"REDACTED"}}}`},
		{"certificate key", "--certificate-key 0123456789abcdef0123456789abcdef", "--certificate-key REDACTED"},
		{"references", "secretName: web-tls\nautomountServiceAccountToken: true\ntokenExpirationSeconds: 3607\n--token-auth-file=/etc/tokens\n", "secretName: web-tls\nautomountServiceAccountToken: true\ntokenExpirationSeconds: 3607\n--token-auth-file=/etc/tokens\n"},
	} {
		if got := string(redactText([]byte(c.in))); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// TestKnownValues checks that the values of Secrets are removed wherever they occur, and the longest first.
func TestKnownValues(t *testing.T) {
	r := newRedactor([][]byte{[]byte("abcdefgh"), []byte("abcdefgh-and-more"), []byte("x"), []byte(password + "\n")})
	in := "a abcdefgh-and-more b abcdefgh c x " + password + " " + base64.StdEncoding.EncodeToString([]byte(password))
	if got, want := string(r.file("log", []byte(in))), "a REDACTED b REDACTED c x REDACTED REDACTED"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(r.file("heap.pprof", []byte("abcdefgh"))); got != "abcdefgh" {
		t.Errorf("profile: %q", got)
	}
}

func TestRedactObject(t *testing.T) {
	var object map[string]any
	if err := yaml.Unmarshal([]byte(`
apiVersion: v1
kind: Pod
metadata:
  name: web
  managedFields: [{manager: kubectl}]
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{"password":"`+password+`"}'
    note: kept
data:
  db-password: `+password+`
  config.yaml: |
    user: a
    secret: `+password+`
spec:
  volumes:
  - secret: {secretName: web-tls}
  containers:
  - env:
    - {name: DB_PASSWORD, value: `+password+`}
    - {name: HOME, value: /root}
    - name: TOKEN
      valueFrom: {secretKeyRef: {name: web, key: token}}
    command: [sh, -c, 'curl -H "Authorization: Bearer `+jwt+`"']
    args: [--token=`+bootstrap+`]
`), &object); err != nil {
		t.Fatal(err)
	}
	text, err := objectText(&unstructured.Unstructured{Object: object})
	if err != nil {
		t.Fatal(err)
	}
	expectNone(t, "object", string(text))
	for _, want := range []string{"name: web", "note: kept", "secretName: web-tls", "value: /root", "user: a", "key: token", "db-password: REDACTED"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "managedFields") {
		t.Errorf("managed fields:\n%s", text)
	}
}

// contents returns the files in an archive by name.
func contents(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "support-bundle/")] = string(data)
	}
}

// TestWithoutCluster writes a bundle of a machine without an API server whose files contain credentials.
func TestWithoutCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := t.TempDir()
	l := layout.Under(root)
	for name, text := range map[string]string{
		l.Log("hyperkube"):                                      "starting with token=" + bootstrap + "\nrequest failed Authorization: Bearer " + jwt + "\nlast line\n",
		filepath.Join(l.PKI(), "ca.key"):                        privateKey,
		filepath.Join(l.PKI(), "encryption.yaml"):               "secret: " + password,
		filepath.Join(l.Data, "admin.conf"):                     "client-key-data: " + base64.StdEncoding.EncodeToString([]byte(privateKey)),
		l.ConfigFile("registries.yaml"):                         "configs:\n  r:\n    auth:\n      username: puller\n      password: " + password + "\n",
		filepath.Join(l.StaticPods(), "kube-apiserver.yaml"):    "args: [--service-account-private-key=" + password + "]\n",
		filepath.Join(l.PodLogs, "kube-system_dns_1/dns/0.log"): "2026 stdout F " + privateKey + "\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(root, "bundle.tar.gz")
	failed, err := Write(t.Context(), Config{Layout: l, Check: func(context.Context) any { return "checked" }, Status: func(context.Context) any { return nil }}, name)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(failed, "objects") || !slices.Contains(failed, "profiles") || !slices.Contains(failed, "runtime") {
		t.Errorf("failed: %q", failed)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := contents(t, f)
	for file, text := range files {
		expectNone(t, file, text)
	}
	for file, want := range map[string]string{
		"logs" + l.Log("hyperkube"): "last line", "check.json": "checked", "errors.txt": "objects: the API server is not queried",
		"config" + l.ConfigFile("registries.yaml"): "username: puller", "host/sysctl.txt": "net.ipv4.ip_forward = ", "network/links.txt": ": lo type",
		"host/proc/self/mountinfo": " / ", "host/processes.txt": "(", "version.json": "gitVersion", "logs" + l.PodLogs + "/kube-system_dns_1/dns/0.log": "REDACTED",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s does not contain %q: %.300s", file, want, files[file])
		}
	}
	for file := range files {
		if strings.Contains(file, "/pki/") || strings.HasSuffix(file, "admin.conf") {
			t.Errorf("%s is in the archive", file)
		}
	}
	if _, err := Write(t.Context(), Config{Layout: l}, name); !errors.Is(err, os.ErrExist) {
		t.Errorf("existing file: %v", err)
	}
}

// TestCollectors checks that collectors which fail, panic, hang or add too much do not affect the others.
func TestCollectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan bool)
		var out bytes.Buffer
		failed, err := writeArchive(t.Context(), Config{Layout: layout.Under("/nonexistent")}, []collector{
			{"good", func(_ context.Context, c *collection) error {
				c.add("good.txt", []byte("good"))
				c.add("empty.txt", nil)
				return nil
			}},
			{"fails", func(_ context.Context, c *collection) error {
				c.add("part.txt", []byte("part"))
				return errors.New("no luck")
			}},
			{"panics", func(context.Context, *collection) error { panic("oh") }},
			{"hangs", func(_ context.Context, c *collection) error {
				c.add("early.txt", []byte("early"))
				<-end
				c.add("late.txt", []byte("late"))
				return nil
			}},
			{"large", func(_ context.Context, c *collection) error {
				c.add("large.txt", bytes.Repeat([]byte("0123456789\n"), maxFileSize/10))
				return nil
			}},
			{"many", func(_ context.Context, c *collection) error {
				for i := range maxFiles + 10 {
					c.add(fmt.Sprintf("many/%d.txt", i), []byte("x"))
				}
				return nil
			}},
		}, &out)
		close(end)
		if err != nil || !slices.Equal(failed, []string{"fails", "panics", "hangs", "many"}) {
			t.Errorf("failed %q, %v", failed, err)
		}
		files := contents(t, &out)
		for name, want := range map[string]string{"good.txt": "good", "part.txt": "part", "early.txt": "early", "errors.txt": "fails: no luck"} {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s: %q", name, files[name])
			}
		}
		if !strings.Contains(files["errors.txt"], "the collector has panicked: oh") || !strings.Contains(files["errors.txt"], "hangs: stopped after 15s") {
			t.Errorf("errors: %s", files["errors.txt"])
		}
		if size := len(files["large.txt"]); size > maxFileSize+100 || !strings.HasSuffix(files["large.txt"], "0123456789\n") || !strings.HasPrefix(files["large.txt"], "…") {
			t.Errorf("large file: %d bytes, %.50q", size, files["large.txt"])
		}
		if n := len(files); n != maxFiles+5 {
			t.Errorf("%d files", n)
		}
		if _, ok := files["empty.txt"]; ok || files["late.txt"] != "" {
			t.Error("empty or late file")
		}
		time.Sleep(time.Second) // lets the collector that hung return
	})
}
