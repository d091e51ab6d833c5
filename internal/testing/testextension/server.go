// Package testextension implements a small extension API server for tests of aggregation. It serves
// one kind, "Flunder" of wardle.example.com/v1alpha1, and stores it in memory. Like every extension
// server, it delegates authentication (front proxy certificate and headers, TokenReview) and
// authorization (SubjectAccessReview) to the main API server.
package testextension

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/credentials/pki"
)

// Group, version and name of the resource that the extension server serves.
const (
	Group    = "wardle.example.com"
	Version  = "v1alpha1"
	Resource = "flunders"
)

// Config configures a Server, the extension API server for tests.
type Config struct {
	// Kube is a client with the roles system:auth-delegator and
	// extension-apiserver-authentication-reader.
	Kube kubernetes.Interface
	// Dir is the directory for certificates.
	Dir string
	// Namespace and Service identify the Service of the server.
	Namespace, Service string
	// Listener is the listener to serve on. The server closes it.
	Listener net.Listener
}

// Server is a running extension API server for tests.
type Server struct {
	cfg  Config
	ca   []byte
	http *http.Server

	// Settings from the ConfigMap extension-apiserver-authentication.
	proxies *x509.CertPool
	names   []string

	mu       sync.Mutex // guards the fields below
	objects  map[string]map[string]any
	revision int
	changed  chan struct{}
	events   []event
	seen     []authenticationv1.UserInfo
}

// event is an event of a watch, in the JSON format of Kubernetes.
type event struct {
	Type   string         `json:"type"`
	Object map[string]any `json:"object"`
}

// Start starts a server on cfg.Listener that runs until Close is called. It reads which front
// proxies to trust from the main API server.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, objects: map[string]map[string]any{}, changed: make(chan struct{})}
	trust, err := cfg.Kube.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading authentication configuration: %w", err)
	}
	s.proxies = x509.NewCertPool()
	if !s.proxies.AppendCertsFromPEM([]byte(trust.Data["requestheader-client-ca-file"])) {
		return nil, fmt.Errorf("ConfigMap has no CA of front proxies: %v", trust.Data)
	}
	if err := json.Unmarshal([]byte(trust.Data["requestheader-allowed-names"]), &s.names); err != nil {
		return nil, fmt.Errorf("reading authentication configuration: %w", err)
	}
	set, err := pki.Ensure(cfg.Dir, pki.Config{})
	if err != nil {
		return nil, err
	}
	s.ca = set.CA.CertPEM
	pair, err := set.CA.NewPair(pki.Server("extension", cfg.Service+"."+cfg.Namespace+".svc"))
	if err != nil {
		return nil, err
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{pair.TLS()}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
	}}
	go func() { _ = s.http.ServeTLS(cfg.Listener, "", "") }()
	return s, nil
}

// CA returns the CA of the server's certificate, in PEM, for the caBundle of an APIService.
func (s *Server) CA() []byte { return s.ca }

// Close closes the server and all its connections.
func (s *Server) Close() error { return s.http.Close() }

// Seen returns the authenticated users of all requests for resources, in the order of the requests.
func (s *Server) Seen() []authenticationv1.UserInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// ServeHTTP handles a request. A request for "elsewhere" is redirected, a request for "never/a"
// gets no response.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Seen-Audit-Id", req.Header.Get("Audit-Id"))
	user, ok := s.authenticate(req)
	if !ok {
		fail(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	if !s.authorize(req, user) {
		fail(w, http.StatusForbidden, fmt.Sprintf("User %q cannot %s %s", user.Username, req.Method, req.URL.Path))
		return
	}
	const base = "/apis/" + Group + "/" + Version
	switch path := req.URL.Path; {
	case path == base:
		send(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: Group + "/" + Version,
			APIResources: []metav1.APIResource{{
				Name: Resource, SingularName: "flunder", Namespaced: true, Kind: "Flunder",
				Verbs: metav1.Verbs{"create", "get", "list", "watch"}, ShortNames: []string{"fl"},
			}},
		})
	case path == base+"/elsewhere":
		http.Redirect(w, req, "https://elsewhere.example.com/", http.StatusFound)
	case path == base+"/never/a":
		<-req.Context().Done()
	case path == "/openapi/v2":
		send(w, http.StatusOK, map[string]any{
			"swagger": "2.0", "info": map[string]string{"title": "extension", "version": "1"},
			"paths": map[string]any{base + "/": map[string]any{"get": map[string]any{"responses": map[string]any{"200": map[string]any{
				"description": "OK", "schema": map[string]any{"$ref": "#/definitions/com.example.wardle.v1alpha1.Flunder"}}}}}},
			"definitions": map[string]any{"com.example.wardle.v1alpha1.Flunder": flunderSchema()},
		})
	case path == "/openapi/v3":
		send(w, http.StatusOK, map[string]any{"paths": map[string]any{
			strings.TrimPrefix(base, "/"): map[string]string{"serverRelativeURL": "/openapi/v3" + base + "?hash=1"}}})
	case path == "/openapi/v3"+base:
		send(w, http.StatusOK, map[string]any{
			"openapi": "3.0.0", "info": map[string]string{"title": "extension", "version": "1"},
			"paths": map[string]any{base + "/namespaces/{namespace}/" + Resource: map[string]any{"get": map[string]any{
				"x-kubernetes-group-version-kind": map[string]string{"group": Group, "version": Version, "kind": "Flunder"},
				"x-kubernetes-action":             "list", "responses": map[string]any{}}}},
			"components": map[string]any{"schemas": map[string]any{"com.example.wardle.v1alpha1.Flunder": flunderSchema()}},
		})
	case strings.HasPrefix(path, base+"/"):
		s.mu.Lock()
		s.seen = append(s.seen, user)
		s.mu.Unlock()
		s.resource(w, req, strings.Split(strings.TrimPrefix(path, base+"/"), "/"))
	default:
		fail(w, http.StatusNotFound, "the server could not find the requested resource")
	}
}

// flunderSchema returns the OpenAPI schema of the kind Flunder.
func flunderSchema() map[string]any {
	return map[string]any{
		"description": "Flunder is a test kind.", "type": "object",
		"x-kubernetes-group-version-kind": []any{map[string]string{"group": Group, "version": Version, "kind": "Flunder"}},
		"properties": map[string]any{
			"apiVersion": map[string]string{"type": "string"}, "kind": map[string]string{"type": "string"},
			"metadata": map[string]string{"type": "object"},
			"spec":     map[string]any{"type": "object", "description": "The spec of a flunder."},
		},
	}
}

// authenticate returns the user of a request: from the headers if a trusted front proxy has sent
// it, and otherwise from a TokenReview of the bearer token. It returns false if there is none.
func (s *Server) authenticate(req *http.Request) (authenticationv1.UserInfo, bool) {
	if len(req.TLS.PeerCertificates) > 0 {
		leaf := req.TLS.PeerCertificates[0]
		_, err := leaf.Verify(x509.VerifyOptions{Roots: s.proxies, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err == nil && (len(s.names) == 0 || slices.Contains(s.names, leaf.Subject.CommonName)) {
			u := authenticationv1.UserInfo{
				Username: req.Header.Get("X-Remote-User"), UID: req.Header.Get("X-Remote-Uid"), Groups: req.Header["X-Remote-Group"],
			}
			for name, values := range req.Header {
				if key, ok := strings.CutPrefix(name, "X-Remote-Extra-"); ok {
					if u.Extra == nil {
						u.Extra = map[string]authenticationv1.ExtraValue{}
					}
					if plain, err := url.PathUnescape(strings.ToLower(key)); err == nil {
						key = plain
					}
					u.Extra[key] = values
				}
			}
			return u, u.Username != ""
		}
	}
	token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return authenticationv1.UserInfo{}, false
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := s.cfg.Kube.AuthenticationV1().TokenReviews().Create(req.Context(), review, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated {
		return authenticationv1.UserInfo{}, false
	}
	return review.Status.User, true
}

// authorize reports whether a user may make the request. Users in the group system:masters may make every request; for
// others a SubjectAccessReview of the main API server decides. It returns false if the review fails.
func (s *Server) authorize(req *http.Request, u authenticationv1.UserInfo) bool {
	if slices.Contains(u.Groups, "system:masters") {
		return true
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: u.Username, UID: u.UID, Groups: u.Groups}
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if len(parts) >= 6 && parts[3] == "namespaces" {
		verb := map[string]string{http.MethodGet: "list", http.MethodPost: "create"}[req.Method]
		attrs := &authorizationv1.ResourceAttributes{Group: Group, Version: Version, Namespace: parts[4], Resource: parts[5], Verb: verb}
		if len(parts) > 6 {
			attrs.Name, attrs.Verb = parts[6], "get"
		} else if req.URL.Query().Get("watch") != "" {
			attrs.Verb = "watch"
		}
		spec.ResourceAttributes = attrs
	} else {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: req.URL.Path, Verb: strings.ToLower(req.Method)}
	}
	review, err := s.cfg.Kube.AuthorizationV1().SubjectAccessReviews().Create(req.Context(), &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed
}

// resource handles requests for objects of the test resource, namespaces/NAMESPACE/flunders[/NAME]. parts are the
// elements of the path. A list contains the objects of all namespaces.
func (s *Server) resource(w http.ResponseWriter, req *http.Request, parts []string) {
	if len(parts) < 3 || parts[0] != "namespaces" || parts[2] != Resource {
		fail(w, http.StatusNotFound, "the server could not find the requested resource")
		return
	}
	namespace := parts[1]
	switch {
	case len(parts) == 4 && strings.EqualFold(req.Header.Get("Upgrade"), "echo"):
		echo(w)
	case len(parts) == 4:
		s.mu.Lock()
		obj := s.objects[namespace+"/"+parts[3]]
		s.mu.Unlock()
		if obj == nil {
			fail(w, http.StatusNotFound, fmt.Sprintf("%s.%s %q not found", Resource, Group, parts[3]))
			return
		}
		send(w, http.StatusOK, obj)
	case req.Method == http.MethodPost:
		s.create(w, req, namespace)
	case req.URL.Query().Get("watch") != "":
		s.watch(w, req)
	default:
		s.mu.Lock()
		items := []any{}
		for _, e := range s.events {
			items = append(items, e.Object)
		}
		revision := s.revision
		s.mu.Unlock()
		send(w, http.StatusOK, map[string]any{
			"kind": "FlunderList", "apiVersion": Group + "/" + Version, "items": items,
			"metadata": map[string]string{"resourceVersion": strconv.Itoa(revision)},
		})
	}
}

// create stores the object in the body of a request and notifies watches. It replaces an object of the same name. An
// object without a name is rejected.
func (s *Server) create(w http.ResponseWriter, req *http.Request, namespace string) {
	var obj map[string]any
	if err := json.NewDecoder(req.Body).Decode(&obj); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	meta, _ := obj["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" {
		fail(w, http.StatusUnprocessableEntity, "name is required")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	meta["namespace"], meta["uid"], meta["resourceVersion"] = namespace, name+"-uid", strconv.Itoa(s.revision)
	s.objects[namespace+"/"+name] = obj
	s.events = append(s.events, event{"ADDED", obj})
	close(s.changed)
	s.changed = make(chan struct{})
	send(w, http.StatusCreated, obj)
}

// watch responds with all previous and future creations, in all namespaces, until the client disconnects.
func (s *Server) watch(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	for sent := 0; ; {
		s.mu.Lock()
		events, changed := s.events[sent:], s.changed
		s.mu.Unlock()
		for _, e := range events {
			if out.Encode(e) != nil {
				return
			}
			sent++
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-req.Context().Done():
			return
		}
	}
}

// echo upgrades the connection to a protocol in which the server sends the client's first line back and closes the
// connection.
func echo(w http.ResponseWriter) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = rw.Flush()
	line, err := rw.ReadString('\n')
	if err != nil {
		return
	}
	_, _ = rw.WriteString(line)
	_ = rw.Flush()
}

// send responds with a status code and v as JSON.
func send(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// fail responds with a Status of Kubernetes for a failed request.
func fail(w http.ResponseWriter, code int, message string) {
	send(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Message: message,
	})
}
