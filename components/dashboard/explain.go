package dashboard

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/pod/explanation"
)

// explain responds with the explanation of the state of a pod or workload. The parameters are namespace and name, which may have the
// prefix of a kind, such as deployment/. What the user may not read is left out.
func explain(w http.ResponseWriter, r *http.Request, one *session) {
	q := r.URL.Query()
	namespace, name := q.Get("namespace"), q.Get("name")
	if namespace == "" || name == "" {
		http.Error(w, "the parameters namespace and name are required", http.StatusBadRequest)
		return
	}
	kube, err := kubernetes.NewForConfigAndClient(one.upstream.rest, one.upstream.client)
	if err != nil {
		http.Error(w, "creating the API client: "+err.Error(), http.StatusInternalServerError)
		return
	}
	out, err := explanation.Explain(r.Context(), kube, namespace, name)
	switch {
	case err == nil:
		respond(w, out)
	case errors.Is(err, explanation.ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case apierrors.IsForbidden(err):
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}
