package applyset

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxMessage is the maximum length of the message of an Event, in bytes.
const maxMessage = 1024

// Warn creates a Warning event on the parent of a set, which may not exist yet. It truncates long messages.
func (c *Client) Warn(ctx context.Context, set Set, reason, message string) error {
	p, err := c.parent(ctx, set)
	if err != nil {
		return err
	}
	involved := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "namespace": ParentNamespace, "name": set.Name}
	if p != nil {
		involved["uid"] = p.uid
	}
	now := time.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"generateName": set.Name + ".", "namespace": ParentNamespace},
		"involvedObject": involved, "type": "Warning", "reason": reason, "message": message[:min(len(message), maxMessage)],
		"source": map[string]any{"component": tool}, "count": int64(1), "firstTimestamp": now, "lastTimestamp": now,
	}}
	events := c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(ParentNamespace)
	if _, err := events.Create(ctx, event, metav1.CreateOptions{FieldManager: parentManager}); err != nil {
		return fmt.Errorf("creating event: %w", err)
	}
	return nil
}
