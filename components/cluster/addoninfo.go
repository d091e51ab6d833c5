package cluster

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/applyset"
	"hyperkube/manifests"
)

// addonInfo is an add-on in the output of `addon list` and `addon status`.
type addonInfo struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Enabled     bool   `json:"enabled"`
	// Status is applied, pending, replaced by a Service, disabled or pruning.
	Status string `json:"status"`
	// Objects are the objects of an enabled add-on, and remaining objects of a disabled one. Only `addon
	// status` returns them.
	Objects []addonObject `json:"objects,omitempty"`
	// Problems are messages for the user. Only `addon status` returns them.
	Problems []string `json:"problems,omitempty"`
}

// addonObject is an object of an add-on in the output of `addon status`: its kind and name, and its state.
type addonObject struct {
	Object string `json:"object"`
	Status string `json:"status"`
}

// infos returns the state of add-ons. Objects and problems are included if details is true.
func (c *addonCluster) infos(ctx context.Context, selected []manifests.Addon, details bool) ([]addonInfo, error) {
	settings, err := addons.ReadSettings(ctx, c.clients.Kube)
	if err != nil {
		return nil, err
	}
	out := make([]addonInfo, 0, len(selected))
	for _, a := range selected {
		info := addonInfo{Name: a.Name, Description: a.Description, Enabled: settings.Enabled(a)}
		state, err := c.reconciler.Client.State(ctx, addons.SetOf(a))
		if err != nil {
			return nil, err
		}
		replaced, err := c.reconciler.ReplacedBy(ctx, a)
		if err != nil {
			return nil, err
		}
		info.Status = addonState(info.Enabled, state, replaced)
		if details {
			if err := c.addObjects(ctx, a, &info, state, replaced != ""); err != nil {
				return nil, err
			}
		}
		out = append(out, info)
	}
	return out, nil
}

// addonState returns the status of an add-on: whether its last change is applied, in progress, or without effect
// because a Service of another client serves its API.
func addonState(enabled bool, s applyset.State, replacedBy string) string {
	switch {
	case enabled && replacedBy != "":
		return "replaced by Service " + replacedBy
	case enabled && s.Applied:
		return "applied"
	case enabled:
		return "pending"
	case s.Exists:
		return "pruning"
	}
	return "disabled"
}

// addObjects adds the objects and problems of an add-on to info: its last error, and desired objects that do not exist
// or belong to another client. A disabled or replaced add-on has no desired objects.
func (c *addonCluster) addObjects(ctx context.Context, a manifests.Addon, info *addonInfo, state applyset.State, replaced bool) error {
	desired, err := a.Objects(c.reconciler.Values)
	if err != nil {
		return err
	}
	for _, m := range state.Members {
		info.Objects = append(info.Objects, addonObject{m.Ref.String(), objectState(m.Object)})
	}
	slices.SortFunc(info.Objects, func(a, b addonObject) int { return slices.Compare([]string{a.Object}, []string{b.Object}) })
	if text := addons.Problem(state.Data); text != "" {
		info.Problems = append(info.Problems, text)
	}
	if !info.Enabled || replaced {
		return nil
	}
	for _, obj := range desired {
		ref := applyset.RefOf(obj)
		if slices.ContainsFunc(state.Members, func(m applyset.Member) bool { return m.Ref == ref }) {
			continue
		}
		text, err := c.foreignState(ctx, obj)
		if err != nil {
			return err
		}
		info.Objects = append(info.Objects, addonObject{ref.String(), text})
		info.Problems = append(info.Problems, fmt.Sprintf("%s: %s; run `hyperkube addon enable %s`", ref, text, a.Name))
	}
	return nil
}

// foreignState returns the state of a desired object that is not a member of the add-on's ApplySet: missing, or created
// by another client.
func (c *addonCluster) foreignState(ctx context.Context, obj *unstructured.Unstructured) (string, error) {
	exists, err := c.reconciler.Client.Exists(ctx, obj)
	if err != nil {
		return "", err
	}
	if !exists {
		return "missing", nil
	}
	return "exists, but is not part of the add-on: delete it", nil
}

// objectState returns the state of an object of an add-on: the available replicas of a Deployment; for other kinds that
// it exists, or is being deleted.
func objectState(obj *unstructured.Unstructured) string {
	if obj.GetDeletionTimestamp() != nil {
		return "terminating"
	}
	if obj.GetKind() != "Deployment" {
		return "exists"
	}
	desired, found, _ := unstructured.NestedInt64(obj.Object, "spec", "replicas")
	if !found {
		desired = 1
	}
	available, _, _ := unstructured.NestedInt64(obj.Object, "status", "availableReplicas")
	return fmt.Sprintf("%d of %d available", available, desired)
}
