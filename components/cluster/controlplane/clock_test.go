package controlplane

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/controllers/bootstraptokens"
	"hyperkube/internal/credentials/pki"
)

var clockBehind = regexp.MustCompile(`this machine's clock is (\S+) behind the cluster's`)

// TestJoinClockSkew: a worker whose clock differs from that of the cluster prints a warning and
// joins. A control plane node does not join.
func TestJoinClockSkew(t *testing.T) {
	set, err := pki.Ensure(t.TempDir(), pki.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var info *corev1.ConfigMap
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
		_ = json.NewEncoder(w).Encode(info)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{set.APIServer.TLS()}}
	s.StartTLS()
	t.Cleanup(s.Close)
	if info, err = (joindiscovery.Cluster{Server: s.URL, CA: set.CA.CertPEM}).Info(); err != nil {
		t.Fatal(err)
	}
	info.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
	token := joindiscovery.NewToken()
	signature, err := bootstraptokens.Sign(info.Data["kubeconfig"], token.ID, token.Key)
	if err != nil {
		t.Fatal(err)
	}
	info.Data[bootstraptokens.SignatureKey(token.ID)] = signature
	for _, controlPlane := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		o := &joinOptions{asControlPlane: controlPlane, token: token.String(), discovery: joindiscovery.Discovery{
			Endpoint: strings.TrimPrefix(s.URL, "https://"), Hashes: []string{joindiscovery.Hash(set.CA.Cert)},
		}}
		o.node.Name = "joining"
		if _, err := o.validate(); err != nil {
			t.Fatal(err)
		}
		var lines []string
		_, err := o.discover(ctx, progress.Waiter{FirstReport: 10 * time.Millisecond, ReportInterval: 10 * time.Millisecond, Report: func(text string) {
			if lines = append(lines, text); strings.Contains(text, "still waiting") && strings.Contains(text, "clock") {
				cancel()
			}
		}})
		text := strings.Join(lines, "\n")
		var behind time.Duration
		if found := clockBehind.FindStringSubmatch(text); found != nil {
			behind, _ = time.ParseDuration(found[1])
		}
		// A Date header has no fractions of a second, and the response takes some time.
		if (err != nil) != controlPlane || behind.Round(time.Minute) != 10*time.Minute {
			t.Errorf("control plane node %v: %v; output %q", controlPlane, err, text)
		}
	}
}
