package client

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// hideConnectionRefused is a RoundTripper that hides "connection refused" errors of watch requests with
// sendInitialEvents from reflectors. After such an error a reflector pauses for up to half a minute
// and ignores its stop channel, which would delay the shutdown of a process whose API server has
// stopped already. After any other error the reflector returns and its caller pauses, which can be
// interrupted. Watches that continue from a resource version do not pause like this, and must see
// the original error to continue.
type hideConnectionRefused struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper. It replaces only the error "connection refused" of a watch with
// sendInitialEvents, by an error with the same text.
func (t hideConnectionRefused) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil && utilnet.IsConnectionRefused(err) && r.URL.Query().Get("sendInitialEvents") == "true" {
		err = opaqueError{err.Error()}
	}
	return response, err
}

// opaqueError is an error that keeps only the message of another error, so that errors.Is and
// similar checks do not recognize the cause.
type opaqueError struct{ text string }

// Error returns the text of the replaced error.
func (o opaqueError) Error() string { return o.text }
