package dashboard

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/pod/explanation"
)

// explain responds with the explanation of the state of a pod or workload. The parameters are namespace and name, which may have the
// prefix of a kind, such as deployment/. What the user may not read is left out.
func explain(w http.ResponseWriter, r *http.Request, one *session) {
	answer(w, r, one, explanation.Explain)
}

// answer responds with the result of ask about the object in the parameters namespace and name.
func answer[T any](w http.ResponseWriter, r *http.Request, one *session, ask func(ctx context.Context, kube kubernetes.Interface, namespace, name string) (T, error)) {
	q := r.URL.Query()
	namespace, name := q.Get("namespace"), q.Get("name")
	if namespace == "" || name == "" {
		http.Error(w, "the parameters namespace and name are required", http.StatusBadRequest)
		return
	}
	out, err := ask(r.Context(), one.upstream.kube, namespace, name)
	switch {
	case err == nil:
		respond(w, out)
	case errors.Is(err, explanation.ErrNotFound), apierrors.IsNotFound(err):
		http.Error(w, err.Error(), http.StatusNotFound)
	case apierrors.IsForbidden(err):
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}
