package bootstrap

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/api"
)

// What a cluster starts with belongs to the API server, as metadata.managedFields
// says: server-side apply and kubectl then tell of whose fields somebody takes.
// The type schemas by which the library finds out who owns what take longer to
// read than all of these objects to write, and the first start waits for them. So
// the fields are found by the Go types, of which few have lists with keys; a test
// compares with what a create through the API writes.

// The managers of these objects, as Kubernetes names them.
const (
	serverManager    = "kube-apiserver"
	fairnessManager  = "api-priority-and-fairness-config-producer-v1"
	fairnessStatuses = "api-priority-and-fairness-config-consumer-v1"
	cidrStatuses     = "kubernetes-service-cidr-controller"
)

// The fields of statuses, which are applied.
const (
	danglingFields = `{"f:status":{"f:conditions":{"k:{\"type\":\"Dangling\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`
	readyFields    = `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:status":{},"f:type":{}}}}}`
)

// manage records who has made a new object, which has its defaults.
func manage(res *api.Resource, obj api.Object) {
	manager := serverManager
	var entries []metav1.ManagedFieldsEntry
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	add := func(manager string, operation metav1.ManagedFieldsOperationType, subresource string, fields []byte) {
		owned := &metav1.FieldsV1{}
		owned.SetRawBytes(fields)
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: operation, Subresource: subresource, APIVersion: res.GroupVersion().String(),
			Time: &now, FieldsType: "FieldsV1", FieldsV1: owned,
		})
	}
	switch obj.(type) {
	case *flowcontrolv1.FlowSchema:
		manager = fairnessManager
		add(fairnessStatuses, metav1.ManagedFieldsOperationApply, "status", []byte(danglingFields))
	case *flowcontrolv1.PriorityLevelConfiguration:
		manager = fairnessManager
	case *networkingv1.ServiceCIDR:
		add(cidrStatuses, metav1.ManagedFieldsOperationApply, "status", []byte(readyFields))
	}
	fields := ownedFields(obj)
	if len(fields) == 0 {
		return
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return // rather without than not at all, as for any create
	}
	add(manager, metav1.ManagedFieldsOperationUpdate, "", data)
	obj.SetManagedFields(entries)
}

// owned are fields by their labels in managed fields, with those below them.
type owned map[string]owned

// ownedFields returns what who creates obj owns of it: what an empty object has
// not, but for what belongs to the system.
func ownedFields(obj api.Object) owned {
	out := owned{}
	fieldsOf(out, reflect.ValueOf(obj).Elem(), true, false)
	metadata := owned{}
	for name, values := range map[string]map[string]string{"f:labels": obj.GetLabels(), "f:annotations": obj.GetAnnotations()} {
		if len(values) == 0 {
			continue
		}
		metadata[name] = owned{".": {}}
		for key := range values {
			metadata[name]["f:"+key] = owned{}
		}
	}
	if len(metadata) > 0 {
		out["f:metadata"] = metadata
	}
	return out
}

// fieldsOf adds the fields of a struct, at the top of an object without its
// metadata and status. It is fresh when an empty object has nothing there.
func fieldsOf(out owned, v reflect.Value, top, fresh bool) {
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name == "" || top && (name == "metadata" || name == "status") {
			continue
		}
		at, fresh := v.Field(i), fresh || strings.Contains(options, "omitzero")
		if at.Kind() == reflect.Pointer {
			at, fresh = at.Elem(), true
		}
		if !at.IsValid() || at.IsZero() && v.Field(i).Kind() != reflect.Pointer {
			continue
		}
		below := owned{}
		_, whole := at.Interface().(json.Marshaler)
		if at.Type() == reflect.TypeFor[rbacv1.RoleRef]() {
			whole = true // it is owned as one
		}
		switch {
		case at.Kind() == reflect.Struct && !whole:
			if fresh {
				below["."] = owned{}
			}
			fieldsOf(below, at, false, fresh)
			if len(below) == 0 {
				continue
			}
		case at.Type() == reflect.TypeFor[[]corev1.ServicePort]():
			portFields(below, at.Interface().([]corev1.ServicePort))
		}
		out["f:"+name] = below
	}
}

// portFields adds the ports of a Service, which have keys.
func portFields(out owned, ports []corev1.ServicePort) {
	out["."] = owned{}
	for i := range ports {
		port := owned{".": {}}
		fieldsOf(port, reflect.ValueOf(&ports[i]).Elem(), false, true)
		out[fmt.Sprintf(`k:{"port":%d,"protocol":%q}`, ports[i].Port, ports[i].Protocol)] = port
	}
}
