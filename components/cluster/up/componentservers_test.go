package up

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/serving/debugserver"
	"hyperkube/internal/testing/testport"
)

// TestServeComponents checks that each component answers on its port with the current certificate, and that a
// port in use does not affect the others.
func TestServeComponents(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	free := testport.Address(t)
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveComponents(ctx, slog.New(slog.NewTextHandler(&log, nil)), debugserver.Config{Component: "late", Addr: busy.Addr().String()}, debugserver.Config{Component: "early", Addr: free})
	}()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	var answer string
	for end := time.Now().Add(time.Minute); answer == "" && time.Now().Before(end); {
		resp, err := client.Get("https://" + free + "/healthz")
		if err != nil {
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		answer = string(body)
	}
	if answer != "ok" {
		t.Errorf("health is %q", answer)
	}
	resp, err := client.Get("https://" + free + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("metrics without authentication: %s", resp.Status)
	}
	cancel()
	<-done
	if !strings.Contains(log.String(), "component=late") || strings.Contains(log.String(), "component=early") {
		t.Errorf("log: %s", log.String())
	}
}
