package frontproxy

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Require returns a handler that calls next for requests that Check accepts, and rejects others with the status 401. It
// writes rejections to log at debug level.
func (t *Authenticator) Require(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := t.Check(req); err != nil {
			log.Debug("unauthenticated request to an aggregated API rejected with 401", "path", req.URL.Path, "err", err)
			SendError(w, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// RegisterDiscovery registers handlers of the discovery documents of an aggregated API server: the list of its groups, and
// for each of resources, which are all in different groups, the group and the resources of its only version. wrap is
// applied to each handler.
//
// https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
func RegisterDiscovery(mux *http.ServeMux, wrap func(http.Handler) http.Handler, resources ...metav1.APIResourceList) {
	serve := func(path string, document any) {
		mux.Handle("GET "+path, wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { Send(w, http.StatusOK, document) })))
	}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, list := range resources {
		name, version, _ := strings.Cut(list.GroupVersion, "/")
		only := metav1.GroupVersionForDiscovery{GroupVersion: list.GroupVersion, Version: version}
		group := metav1.APIGroup{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: name,
			Versions: []metav1.GroupVersionForDiscovery{only}, PreferredVersion: only,
		}
		groups.Groups = append(groups.Groups, group)
		serve("/apis/"+name, group)
		serve("/apis/"+list.GroupVersion, list)
	}
	serve("/apis", groups)
}

// Send sends obj as JSON.
func Send(w http.ResponseWriter, code int, obj any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(obj) // the client may have disconnected
}

// SendError sends err as a Status. It must not be wrapped; an error of another package than apierrors is an internal error.
func SendError(w http.ResponseWriter, err error) {
	status := apierrors.NewInternalError(err).Status()
	if coded, ok := err.(apierrors.APIStatus); ok { //nolint:errorlint // see above
		status = coded.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	Send(w, int(status.Code), status)
}
