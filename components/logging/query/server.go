// Package query serves the API logs.hyperkube.io, which searches the log stores of all nodes.
//
// An API server proxies each request to any of the agents. That agent authorizes the user, searches its own store, sends the request to the agents of the
// other nodes, and merges the results by time. The response is a stream of JSON objects, one per line.
package query

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/logging/store"
	"hyperkube/internal/serving/frontproxy"
)

// Group and Version are those of the API.
const (
	Group   = "logs.hyperkube.io"
	Version = "v1alpha1"
)

const (
	prefix       = "/apis/" + Group
	groupVersion = Group + "/" + Version
	// peerPath is the path of requests of other agents.
	peerPath = "/peer/logs"
)

// Path returns the path of the API for the parameters.
func Path(p Params) string {
	switch {
	case p.NodeLogs:
		return prefix + "/" + Version + "/nodelogs"
	case p.Namespace == "":
		return prefix + "/" + Version + "/logs"
	}
	return prefix + "/" + Version + "/namespaces/" + p.Namespace + "/logs"
}

// Config configures a Handler.
type Config struct {
	// Node is the name of the node of Store.
	Node  string
	Store *store.Store
	// Kube may create SubjectAccessReviews and read the front proxy configuration.
	Kube kubernetes.Interface
	// PeerCA verifies the client certificates of other agents.
	PeerCA *x509.CertPool
	// Peers are the agents of the other nodes.
	Peers Peers
	// Log receives debug messages. Nil means slog's default.
	Log *slog.Logger
}

// Peers finds the agents of other nodes.
type Peers interface {
	// List returns the agents of all other nodes.
	List(ctx context.Context) ([]Peer, error)
}

// Peer is the agent of another node.
type Peer interface {
	// Node returns the name of the node.
	Node() string
	// Search sends the lines of the agent to out until it has sent all, or ctx is done.
	Search(ctx context.Context, p Params, out chan<- Line) error
}

// maxSearches is the number of searches that run concurrently. More wait.
const maxSearches = 4

// Handler serves the API.
type Handler struct {
	cfg       Config
	auth      *frontproxy.Authenticator
	mux       *http.ServeMux
	searching chan struct{} // has an element for each running search
}

// New validates cfg and returns a Handler.
func New(cfg Config) (*Handler, error) {
	if cfg.Store == nil || cfg.Kube == nil || cfg.PeerCA == nil || cfg.Peers == nil {
		return nil, errors.New("log API: a store, an API client, a CA and peers are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	h := &Handler{cfg: cfg, auth: frontproxy.New(cfg.Kube), mux: http.NewServeMux(), searching: make(chan struct{}, maxSearches)}
	h.routes()
	return h, nil
}

// ServeHTTP implements http.Handler. Requests need the client certificate of an API server or of another agent.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

func (h *Handler) routes() {
	verbs := metav1.Verbs{"list", "watch"}
	resources := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion,
		APIResources: []metav1.APIResource{
			{Name: "logs", SingularName: "log", Kind: "Log", Namespaced: true, Verbs: verbs},
			{Name: "nodelogs", SingularName: "nodelog", Kind: "NodeLog", Verbs: verbs},
		},
	}
	proxied := func(next http.Handler) http.Handler { return h.auth.Require(next, h.cfg.Log) }
	frontproxy.RegisterDiscovery(h.mux, proxied, resources)
	search := proxied(http.HandlerFunc(h.search))
	h.mux.Handle("GET "+prefix+"/"+Version+"/logs", search)
	h.mux.Handle("GET "+prefix+"/"+Version+"/namespaces/{namespace}/logs", search)
	h.mux.Handle("GET "+prefix+"/"+Version+"/nodelogs", search)
	h.mux.HandleFunc("GET "+peerPath, h.peer)
}

// search serves the logs that a user may read.
func (h *Handler) search(w http.ResponseWriter, r *http.Request) {
	p, err := ParseParams(r.URL.Query())
	if err != nil {
		frontproxy.SendError(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	p.Namespace = r.PathValue("namespace")
	if p.NodeLogs = strings.HasSuffix(r.URL.Path, "/nodelogs"); p.NodeLogs {
		p.Pod, p.Container, p.Selector = "", "", ""
	} else {
		p.File = ""
	}
	if err := h.authorize(r, p); err != nil {
		frontproxy.SendError(w, err)
		return
	}
	h.stream(w, r, p, func(ctx context.Context, out *lineWriter) error { return h.searchAll(ctx, p, out) })
}

// peer serves the logs of this node to the agent of another node, which has authorized the user.
func (h *Handler) peer(w http.ResponseWriter, r *http.Request) {
	if err := h.checkPeer(r); err != nil {
		h.cfg.Log.Debug("unauthenticated request of another agent rejected with 401", "address", r.RemoteAddr, "err", err)
		frontproxy.SendError(w, apierrors.NewUnauthorized("Unauthorized"))
		return
	}
	v := r.URL.Query()
	p, err := ParseParams(v)
	if err != nil {
		frontproxy.SendError(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	p.Namespace, p.NodeLogs = v.Get("namespace"), v.Get("nodeLogs") == "true"
	h.stream(w, r, p, func(ctx context.Context, out *lineWriter) error {
		return h.local(ctx, p, func(l Line) error {
			if err := out.write(l); err != nil {
				return err
			}
			if l.HistoryEnd || l.live {
				return out.flush()
			}
			return nil
		})
	})
}

// checkPeer verifies the client certificate of another agent.
func (h *Handler) checkPeer(r *http.Request) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return errors.New("no client certificate")
	}
	_, err := r.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: h.cfg.PeerCA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// authorize returns an error unless the user may read the logs that p selects, as the API server decides about the requests of kubectl logs.
func (h *Handler) authorize(r *http.Request, p Params) error {
	u := frontproxy.User(r)
	if u == nil {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	attributes := &authorizationv1.ResourceAttributes{Namespace: p.Namespace, Verb: "get", Resource: "pods", Subresource: "log", Name: p.Pod, Version: "v1"}
	if p.NodeLogs {
		attributes.Resource, attributes.Name = "nodes", p.Node
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range u.GetExtra() {
		extra[key] = values
	}
	review, err := h.cfg.Kube.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra, ResourceAttributes: attributes,
	}}, metav1.CreateOptions{})
	if err != nil {
		h.cfg.Log.Warn("authorizing a search of logs failed; the request is rejected with 500, no retry", "user", u.GetName(), "err", err)
		return apierrors.NewInternalError(errors.New("authorizing the request failed"))
	}
	if !review.Status.Allowed {
		scope := "in any namespace"
		switch {
		case p.NodeLogs:
			scope = "of nodes"
		case p.Namespace != "":
			scope = "in the namespace " + p.Namespace
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: attributes.Resource + "/log"}, attributes.Name, errors.New("user "+u.GetName()+" cannot read logs "+scope))
	}
	return nil
}
