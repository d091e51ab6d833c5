package rest

import (
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// checkSize returns the error 413 if obj is a custom resource that etcd will certainly reject because of its size.
// Computing managed fields doubles the size of an object with many small fields and takes seconds, so obj must not
// have any yet.
//
// allOwned means that the writer will own all fields of obj, as the creator of an object does. Objects of small
// requests, and those of another version than the stored one, are not examined.
func (c *call) checkSize(obj api.Object, allOwned bool) error {
	content, ok := obj.(*unstructured.Unstructured)
	// The configuration of server-side apply is unstructured for all kinds.
	if !ok || c.res.Custom == nil || c.body == nil || len(c.body.data) <= slotThreshold {
		return nil
	}
	if c.res.Version != c.res.StoredAs.Version {
		return nil // the conversion to the stored version could make the object smaller
	}
	owned := allOwned && !c.res.Custom.AtomicMaps()
	size := 0
	for name, v := range content.Object {
		// The server replaces the metadata, and drops a status unless the request is for the status.
		if name != "metadata" && name != "status" {
			size += minimumSize(v, owned)
		}
	}
	if int64(size) > c.cfg.MaxStored {
		return c.storeError(store.ErrTooLarge, obj.GetName())
	}
	return nil
}

// minimumSize returns a lower bound of the size of v in JSON, in bytes. If owned is set, it includes
// an entry of managed fields for every key of a map: "f:key":{}. Lists are atomic unless the schema
// declares otherwise, so their elements may have no entries.
func minimumSize(v any, owned bool) int {
	switch v := v.(type) {
	case map[string]any:
		size := 2
		for key, child := range v {
			size += len(key) + len(`"":`) + minimumSize(child, owned)
			if owned {
				size += len(key) + len(`"f:":{}`)
			}
		}
		return size
	case []any:
		size := 2
		for _, child := range v {
			size += minimumSize(child, false)
		}
		return size
	case string:
		return len(v) + 2
	case int64:
		return len(strconv.FormatInt(v, 10))
	}
	return 1 // a number; true, false and null are longer
}
