package staticpod

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/podrefs"
)

// check tells why a manifest's pod cannot be run: it is not a valid one, or it wants
// objects of an API server, which static pods run without.
func check(p *v1.Pod) error {
	if errs := pod.Kind().Validate(context.Background(), p); len(errs) > 0 {
		return fmt.Errorf("invalid pod: %v", errs)
	}
	if what := podrefs.First(p); what != "" {
		return fmt.Errorf("static pods may not reference %s", what)
	}
	return nil
}
