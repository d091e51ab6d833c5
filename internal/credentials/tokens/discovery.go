package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// ConfigurationPath and JWKSPath are the paths of the public discovery documents, with which other parties verify
// tokens.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	JWKSPath          = "/openid/v1/jwks"
)

// Discovery serves the public documents of an issuer, as specified by OpenID Connect Discovery 1.0,
// with which other systems verify service account tokens.
type Discovery struct {
	configuration, jwks []byte
}

// NewDiscovery creates the documents for an issuer. jwksURI is the public URL of the keys. It returns an error if the
// issuer is not an https URL without query and fragment, jwksURI is not an https URL, or keys is empty. The API
// server can then run without discovery.
func NewDiscovery(issuer, jwksURI string, keys *KeySet) (*Discovery, error) {
	if u, err := url.Parse(issuer); err != nil || u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("issuer %q is not an https URL without query and fragment", issuer)
	}
	if u, err := url.Parse(jwksURI); err != nil || u.Scheme != "https" {
		return nil, fmt.Errorf("JWKS URI %q is not an https URL", jwksURI)
	}
	if len(keys.keys) == 0 {
		return nil, errors.New("no service account key configured")
	}
	var algs []string
	for _, k := range keys.keys {
		if !slices.Contains(algs, string(k.alg)) {
			algs = append(algs, string(k.alg))
		}
	}
	slices.Sort(algs)
	configuration, err := json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		SigningAlgs   []string `json:"id_token_signing_alg_values_supported"`
	}{issuer, jwksURI, []string{"id_token"}, []string{"public"}, algs})
	if err != nil {
		return nil, fmt.Errorf("encoding OpenID configuration: %w", err)
	}
	jwks, err := json.Marshal(keys.jwks())
	if err != nil {
		return nil, fmt.Errorf("encoding service account keys: %w", err)
	}
	return &Discovery{configuration: configuration, jwks: jwks}, nil
}

// Configuration handles requests for ConfigurationPath: it responds with the OpenID Connect discovery document.
func (d *Discovery) Configuration(w http.ResponseWriter, _ *http.Request) {
	writeDocument(w, "application/json", d.configuration)
}

// JWKS handles requests for JWKSPath: it responds with the public keys that verify tokens.
func (d *Discovery) JWKS(w http.ResponseWriter, _ *http.Request) {
	writeDocument(w, "application/jwk-set+json", d.jwks)
}

// writeDocument responds with data, which clients may cache for an hour.
func writeDocument(w http.ResponseWriter, mediaType string, data []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", "public, max-age=3600")
	// An error means that the client has disconnected.
	_, _ = w.Write(data)
}
