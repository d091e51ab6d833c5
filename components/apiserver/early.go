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

// Who asks in the first moment for a custom resource, or for what another server
// serves, must not be told that there is no such thing: garbage collectors and
// operators would take objects for gone that are there.

// early is how long such a request waits before it is told to come again.
const early = 5 * time.Second

// errEarly is that answer.
func errEarly() error {
	err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(early / time.Second)}
	return err
}

// complete waits until the server knows all that is served, by it and by others;
// false when that takes too long.
func (s *Server) complete(req *http.Request) bool {
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
	timer := time.NewTimer(early)
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

// knows tells whether the server knows what a request below /api or /apis is
// about, and answers if not.
func (s *Server) knows(w http.ResponseWriter, req *http.Request) bool {
	if s.known.Load() {
		return true
	}
	if info, ok := apirequest.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if r := s.registry.Lookup(gv.WithResource(info.Resource)); r != nil && r.Custom == nil {
			return true
		}
	} else if strings.HasPrefix(req.URL.Path, "/api/") {
		return true // discovery of what is built in
	}
	if s.complete(req) {
		return true
	}
	s.rest.Error(w, req, errEarly())
	return false
}

// whole is a handler of what tells of all that is served.
func (s *Server) whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !s.complete(req) {
			s.rest.Error(w, req, errEarly())
			return
		}
		h.ServeHTTP(w, req)
	})
}
