package client

import (
	"context"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/cache"
)

// startTolerance is how long after its creation a handler of StartErrors expects errors.
const startTolerance = time.Minute

// StartErrors returns a handler of watch errors for an informer of a node that starts a control plane itself. At first
// there is no API server, and no role that permits the request, because the add-on with the role is installed later. For
// a minute, these errors are logged for developers only. The informer retries in any case.
func StartErrors() cache.WatchErrorHandlerWithContext {
	created := time.Now()
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if (utilnet.IsConnectionRefused(err) || apierrors.IsForbidden(err)) && time.Since(created) < startTolerance {
			slog.Debug("API server does not serve a list yet; retrying with back-off", "type", r.TypeDescription(), "err", err)
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}
}
