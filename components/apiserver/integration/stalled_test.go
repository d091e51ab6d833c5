package integration

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"hyperkube/components/apiserver"
	"hyperkube/internal/credentials/pki"
)

// startOnNetwork runs a server with cfg on the network, where all clients are in the group
// system:masters, and returns its address.
func startOnNetwork(t testing.TB, cfg apiserver.Config) (*apiserver.Server, string) {
	t.Helper()
	dir := t.TempDir()
	set, err := pki.Ensure(dir, pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := set.CA.NewPair(pki.Server("x", "localhost"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.CertFile, cfg.KeyFile = filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")
	if err := os.WriteFile(cfg.CertFile, pair.CertPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.KeyFile, pair.KeyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Listener = listen(t)
	cfg.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		name := req.Header.Get("X-Test-User")
		if name == "" {
			name = "admin"
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{"system:masters", "system:authenticated"}}}, true, nil
	})
	return startServer(t, cfg), cfg.Listener.Addr().String()
}

// TestStalledWatch checks that the watch of a client that keeps its connection open and answers
// pings but does not read is closed.
func TestStalledWatch(t *testing.T) {
	s, address := startOnNetwork(t, apiserver.Config{Limits: apiserver.Limits{SlowReader: 200 * time.Millisecond}})
	kube := kubeOf(t, s, protobuf)
	for i := range 3 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"k": strings.Repeat("v", 100_000)}}
		if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/api/v1/configmaps?watch=1"}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
		t.Fatal(err)
	}
	received := 0
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("the stream was not ended: %v", err)
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			err = framer.WritePing(true, f.Data)
		case *http2.DataFrame:
			received += len(f.Data())
		case *http2.RSTStreamFrame:
			if received == 0 {
				t.Error("no event was sent before")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
