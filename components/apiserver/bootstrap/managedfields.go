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

// Initial objects are owned by the API server according to metadata.managedFields, so that
// server-side apply and kubectl report conflicts with it. The library computes ownership with type
// schemas. Parsing those takes longer than writing all of these objects, and would delay the first
// startup. Therefore the fields are computed from the Go types, of which few have lists with keys.
// A test compares the result with that of a create request through the API.

// Field managers in the managed fields of the initial objects, as in upstream: of the API server, of the flow control
// configuration and its status, and of the status of the ServiceCIDR.
const (
	serverManager    = "kube-apiserver"
	fairnessManager  = "api-priority-and-fairness-config-producer-v1"
	fairnessStatuses = "api-priority-and-fairness-config-consumer-v1"
	cidrStatuses     = "kubernetes-service-cidr-controller"
)

// Fields of the statuses of initial objects in the format of managed fields: the condition Dangling of FlowSchemas,
// and the condition Ready of the ServiceCIDR.
const (
	danglingFields = `{"f:status":{"f:conditions":{"k:{\"type\":\"Dangling\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`
	readyFields    = `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:status":{},"f:type":{}}}}}`
)

// setManagedFields sets the managed fields of a new object that already has its default values. It sets none if the
// object has no fields other than metadata and status, or if encoding them fails.
func setManagedFields(res *api.Resource, obj api.Object) {
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
		return // as for any create request, the object is written without managed fields
	}
	add(manager, metav1.ManagedFieldsOperationUpdate, "", data)
	obj.SetManagedFields(entries)
}

// fieldTree is a set of fields in the format of managed fields: the keys are names such as
// "f:spec", the values the fields below.
type fieldTree map[string]fieldTree

// ownedFields returns the fields that the creator of obj owns: all that an empty object does not
// have, without system metadata and status.
func ownedFields(obj api.Object) fieldTree {
	out := fieldTree{}
	fieldsOf(out, reflect.ValueOf(obj).Elem(), true, false)
	metadata := fieldTree{}
	for name, values := range map[string]map[string]string{"f:labels": obj.GetLabels(), "f:annotations": obj.GetAnnotations()} {
		if len(values) == 0 {
			continue
		}
		metadata[name] = fieldTree{".": {}}
		for key := range values {
			metadata[name]["f:"+key] = fieldTree{}
		}
	}
	if len(metadata) > 0 {
		out["f:metadata"] = metadata
	}
	return out
}

// fieldsOf adds the fields of the struct v that have a value to out. top means that v is a whole object, of which
// metadata and status are skipped. fresh means that an empty object does not have this struct, so the creator owns the
// struct itself too.
func fieldsOf(out fieldTree, v reflect.Value, top, fresh bool) {
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
		below := fieldTree{}
		_, whole := at.Interface().(json.Marshaler)
		if at.Type() == reflect.TypeFor[rbacv1.RoleRef]() {
			whole = true // it is atomic
		}
		switch {
		case at.Kind() == reflect.Struct && !whole:
			if fresh {
				below["."] = fieldTree{}
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

// portFields adds the fields of a Service's ports to out. This list has keys, so each port has a
// name such as k:{"port":443,"protocol":"TCP"}.
func portFields(out fieldTree, ports []corev1.ServicePort) {
	out["."] = fieldTree{}
	for i := range ports {
		port := fieldTree{".": {}}
		fieldsOf(port, reflect.ValueOf(&ports[i]).Elem(), false, true)
		out[fmt.Sprintf(`k:{"port":%d,"protocol":%q}`, ports[i].Port, ports[i].Protocol)] = port
	}
}
