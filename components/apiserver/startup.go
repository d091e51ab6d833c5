package apiserver

import (
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Directly after startup, requests for custom resources and for resources of aggregated servers
// must not fail with "not found": garbage collectors and operators would conclude that existing
// objects have been deleted.

// earlyTimeout is how long a request for a possibly unknown resource waits after startup before the server responds
// with 503. It is also the delay in the header Retry-After of this response.
const earlyTimeout = 5 * time.Second

// errEarly returns the error 503 for a request whose resource is not known yet, directly after
// startup. Clients retry it.
func errEarly() error {
	err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(earlyTimeout / time.Second)}
	return err
}

// waitComplete waits until the server knows all custom resources and those of aggregated servers. It returns true
// then, and immediately once that was the case. It returns false after earlyTimeout, or if the client cancels the
// request or the server stops.
func (s *Server) waitComplete(req *http.Request) bool {
	if s.known.Load() {
		return true
	}
	var missing []<-chan struct{}
	if s.custom != nil {
		missing = append(missing, s.custom.Ready())
	}
	if s.cfg.Aggregation != nil {
		missing = append(missing, s.cfg.Aggregation.Ready())
	}
	timer := time.NewTimer(earlyTimeout)
	defer timer.Stop()
	for _, ready := range missing {
		select {
		case <-ready:
		case <-timer.C:
			return false
		case <-req.Context().Done():
			return false
		case <-s.stopping.Done():
			return false
		}
	}
	s.known.Store(true)
	return true
}

// checkKnown reports whether a request below /api or /apis can be handled because it is certain whether its resource
// exists. For built-in resources and for discovery below /api/ it returns true immediately. Otherwise it waits after
// startup for the custom resources and aggregated servers; on timeout it responds with 503 and returns false.
func (s *Server) checkKnown(w http.ResponseWriter, req *http.Request) bool {
	if s.known.Load() {
		return true
	}
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if r := s.registry.Lookup(gv.WithResource(info.Resource)); r != nil && r.Custom == nil {
			return true
		}
	} else if strings.HasPrefix(req.URL.Path, "/api/") {
		return true // discovery of built-in groups
	}
	if s.waitComplete(req) {
		return true
	}
	s.rest.Error(w, req, errEarly())
	return false
}

// requireComplete wraps a handler whose response depends on all served resources, such as
// discovery. Directly after startup, requests wait until all resources are known, or get the
// response 503.
func (s *Server) requireComplete(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !s.waitComplete(req) {
			s.rest.Error(w, req, errEarly())
			return
		}
		h.ServeHTTP(w, req)
	})
}
