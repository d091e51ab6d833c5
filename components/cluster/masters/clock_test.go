package masters

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

	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/trust"
	"hyperkube/components/controllers/bootstraptokens"
	"hyperkube/internal/pki"
)

var clockBehind = regexp.MustCompile(`this machine's clock is (\S+) behind the cluster's`)

// TestJoinTellsClock: a node with another clock than the cluster's is told so and joins, a
// master does not.
func TestJoinTellsClock(t *testing.T) {
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
	if info, err = (trust.Cluster{Server: s.URL, CA: set.CA.CertPEM}).Info(); err != nil {
		t.Fatal(err)
	}
	info.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
	token := trust.NewToken()
	signature, err := bootstraptokens.Sign(info.Data["kubeconfig"], token.ID, token.Key)
	if err != nil {
		t.Fatal(err)
	}
	info.Data[bootstraptokens.SignatureKey(token.ID)] = signature
	for _, master := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		o := &joinOptions{asMaster: master, token: token.String(), discovery: trust.Discovery{
			Endpoint: strings.TrimPrefix(s.URL, "https://"), Hashes: []string{trust.Hash(set.CA.Cert)},
		}}
		o.node.Name = "joining"
		if _, err := o.settle(); err != nil {
			t.Fatal(err)
		}
		var said []string
		_, err := o.find(ctx, progress.Patience{First: 10 * time.Millisecond, Every: 10 * time.Millisecond, Say: func(text string) {
			if said = append(said, text); strings.Contains(text, "still waiting") && strings.Contains(text, "clock") {
				cancel()
			}
		}})
		text := strings.Join(said, "\n")
		var behind time.Duration
		if found := clockBehind.FindStringSubmatch(text); found != nil {
			behind, _ = time.ParseDuration(found[1])
		}
		// A Date leaves out parts of a second, and the answer takes its time.
		if (err != nil) != master || behind.Round(time.Minute) != 10*time.Minute {
			t.Errorf("as a master %v: %v; it says %q", master, err, text)
		}
	}
}
