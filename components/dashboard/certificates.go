package dashboard

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
)

// certificate is a certificate of the cluster that the page lists.
type certificate struct {
	// Use is what the certificate is for.
	Use     string    `json:"use"`
	Subject string    `json:"subject"`
	Issuer  string    `json:"issuer"`
	Expires time.Time `json:"expires"`
}

// certificateList is the response of listCertificates.
type certificateList struct {
	Items []certificate `json:"items"`
	// Incomplete says why certificates are missing. It is empty if none is.
	Incomplete string `json:"incomplete,omitempty"`
}

// listCertificates responds with the certificates that the user may see: the serving certificate of the API server and its issuers,
// the client certificate of the user, and those of CertificateSigningRequests.
func listCertificates(w http.ResponseWriter, r *http.Request, one *session) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, one.upstream.url.JoinPath("/version").String(), nil)
	if err != nil {
		http.Error(w, "requesting the version: "+err.Error(), http.StatusInternalServerError)
		return
	}
	resp, err := one.upstream.client.Do(req)
	if err != nil {
		http.Error(w, "connecting to the API server: "+err.Error(), http.StatusBadGateway)
		return
	}
	resp.Body.Close()
	out := certificateList{Items: []certificate{}}
	if resp.TLS != nil {
		for i, c := range resp.TLS.PeerCertificates {
			use := "API server"
			if i > 0 {
				use = "issuer of the API server's certificate"
			}
			out.Items = append(out.Items, describe(use, c))
		}
	}
	out.Items = append(out.Items, clientCertificate(one.upstream)...)
	requests, err := one.upstream.kube.CertificatesV1().CertificateSigningRequests().List(r.Context(), metav1.ListOptions{})
	if err != nil {
		out.Incomplete = "listing CertificateSigningRequests: " + err.Error()
	} else {
		out.Items = append(out.Items, issued(requests.Items)...)
	}
	respond(w, out)
}

// clientCertificate returns the certificate with which u authenticates, if it has one.
func clientCertificate(u *upstream) []certificate {
	cfg, err := u.rest.TransportConfig()
	if err != nil {
		return nil // the client of u exists, so cfg is valid
	}
	tlsConfig, err := transport.TLSConfigFor(cfg)
	if err != nil || tlsConfig == nil || tlsConfig.GetClientCertificate == nil {
		return nil
	}
	got, err := tlsConfig.GetClientCertificate(nil)
	if err != nil || len(got.Certificate) == 0 {
		return nil
	}
	c, err := x509.ParseCertificate(got.Certificate[0])
	if err != nil {
		return nil
	}
	return []certificate{describe("you", c)}
}

// issued returns the newest certificate that was issued for each signer and subject. Certificates that cannot be parsed are left out.
func issued(requests []certificatesv1.CertificateSigningRequest) []certificate {
	var out []certificate
	at := map[[2]string]int{} // index in out
	for _, r := range requests {
		block, _ := pem.Decode(r.Status.Certificate)
		if block == nil {
			continue // it is not approved, or not issued yet
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		key := [2]string{r.Spec.SignerName, c.Subject.String()}
		if i, found := at[key]; found {
			if out[i].Expires.Before(c.NotAfter) {
				out[i] = describe(r.Spec.SignerName, c)
			}
			continue
		}
		at[key] = len(out)
		out = append(out, describe(r.Spec.SignerName, c))
	}
	return out
}

// describe returns the certificate of the page for c.
func describe(use string, c *x509.Certificate) certificate {
	return certificate{Use: use, Subject: c.Subject.String(), Issuer: c.Issuer.String(), Expires: c.NotAfter}
}
