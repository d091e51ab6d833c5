package client

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// initialLists carries requests, and hides from reflectors that a watch which was to begin
// with a list has been refused. For such an error they pause, up to half a minute, without
// minding that they are to end, and whoever stops a process whose API server has stopped
// already would wait for them. Of any other they leave, and pause where they can be ended.
// A watch that goes on from a revision has no such pause, and must go on from it.
type initialLists struct{ http.RoundTripper }

func (t initialLists) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil && utilnet.IsConnectionRefused(err) && r.URL.Query().Get("sendInitialEvents") == "true" {
		err = opaque{err.Error()}
	}
	return response, err
}

// opaque is an error of which only the words are told.
type opaque struct{ text string }

func (o opaque) Error() string { return o.text }
