package staticpod

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/api/podrefs"
)

// check returns an error if the pod of a manifest cannot be run: it is invalid, or it refers to API objects
// such as Secrets, which is not permitted for static pods.
func check(p *v1.Pod) error {
	if errs := pod.Kind().Validate(context.Background(), p); len(errs) > 0 {
		return fmt.Errorf("invalid pod: %v", errs)
	}
	if what := podrefs.FirstAPIReference(p); what != "" {
		return fmt.Errorf("static pods may not reference %s", what)
	}
	return nil
}
