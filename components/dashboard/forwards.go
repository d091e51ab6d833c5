package dashboard

import (
	"encoding/json"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hyperkube/components/dashboard/forward"
)

// forwardRoutes adds the routes that list, start and stop port forwards.
func (s *Server) forwardRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /portforwards", s.authenticated(s.listForwards))
	mux.HandleFunc("POST /portforwards", s.authenticated(s.startForward))
	mux.HandleFunc("DELETE /portforwards/{id}", s.authenticated(s.stopForward))
}

// listForwards responds with the list of forwards when it differs from the version in the parameter after.
func (s *Server) listForwards(w http.ResponseWriter, r *http.Request, _ *session) {
	after := 0
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.Atoi(text); err != nil {
			http.Error(w, "the parameter after is not a number", http.StatusBadRequest)
			return
		}
	}
	respond(w, s.forwards.Wait(r.Context(), after))
}

func (s *Server) startForward(w http.ResponseWriter, r *http.Request, _ *session) {
	var req forward.Request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&req); err != nil {
		http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	started, err := s.forwards.Start(r.Context(), req)
	switch {
	case err == nil:
		respond(w, started)
	case apierrors.IsForbidden(err):
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	}
}

func (s *Server) stopForward(w http.ResponseWriter, r *http.Request, _ *session) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil || !s.forwards.Stop(id) {
		http.Error(w, "the port is not forwarded any more", http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
