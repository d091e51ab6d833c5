package top

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"hyperkube/internal/serving/metricshistory"
)

// source reads histories from the API.
type source interface {
	// list returns the histories of all objects of a resource, in a namespace or in all if it is empty.
	list(ctx context.Context, resource, namespace string, length time.Duration) ([]metricshistory.History, error)
	// get returns the history of one object. The error is NotFound if there is none.
	get(ctx context.Context, resource, namespace, name string, length time.Duration) (metricshistory.History, error)
}

// apiSource is the source that sends requests to an API server.
type apiSource struct{ client rest.Interface }

// list implements source.
func (s apiSource) list(ctx context.Context, resource, namespace string, length time.Duration) ([]metricshistory.History, error) {
	var out metricshistory.List
	err := s.read(ctx, resource, namespace, "", length, &out)
	return out.Items, err
}

// get implements source.
func (s apiSource) get(ctx context.Context, resource, namespace, name string, length time.Duration) (metricshistory.History, error) {
	var out metricshistory.History
	err := s.read(ctx, resource, namespace, name, length, &out)
	return out, err
}

// read requests the path of a resource, or of an object if name is not empty, and decodes the response into out.
func (s apiSource) read(ctx context.Context, resource, namespace, name string, length time.Duration, out any) error {
	path := []string{"/apis", metricshistory.Group, metricshistory.Version}
	if namespace != "" {
		path = append(path, "namespaces", url.PathEscape(namespace))
	}
	path = append(path, resource)
	if name != "" {
		path = append(path, url.PathEscape(name))
	}
	data, err := s.client.Get().AbsPath(path...).Param(metricshistory.RangeParameter, length.String()).DoRaw(ctx)
	if err != nil {
		if name == "" && apierrors.IsNotFound(err) {
			return fmt.Errorf("the cluster does not serve the API %s: enable it with `hyperkube addon enable metrics`", metricshistory.Group)
		}
		return fmt.Errorf("reading the usage of %s: %w", resource, err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reading the usage of %s: %w", resource, err)
	}
	return nil
}
