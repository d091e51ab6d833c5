// Package apiregistration defines the kinds of apiregistration.k8s.io/v1.
package apiregistration

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"hyperkube/internal/api"
)

// Resources returns the definitions of the resources of the API group apiregistration.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{apiService().Resource()}
}

// apiService returns the kind APIService, which registers an API group and version. A request for
// them is handled by this server if spec.service is nil, and otherwise proxied to the extension
// server behind that Service.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/apiserver-aggregation/
func apiService() api.Kind[*apiregistrationv1.APIService] {
	type service = *apiregistrationv1.APIService
	return api.Kind[service]{
		Names:      api.Names{Kind: "APIService", Plural: "apiservices", Categories: []string{"api-extensions"}},
		Group:      apiregistrationv1.GroupName,
		Version:    "v1",
		Scope:      api.Cluster,
		New:        func() service { return &apiregistrationv1.APIService{} },
		NewList:    func() runtime.Object { return &apiregistrationv1.APIServiceList{} },
		StoredJSON: true,
		// Upstream's storage path contains the group.
		StoragePath: "apiregistration.k8s.io/apiservices",

		ForbidUnconditionalUpdate: true,
		Default: func(s service) {
			if ref := s.Spec.Service; ref != nil && ref.Port == nil {
				port := int32(443)
				ref.Port = &port
			}
		},
		PrepareCreate: func(_ context.Context, s service) {
			s.Status = apiregistrationv1.APIServiceStatus{}
			if s.Spec.Service == nil {
				helper.SetAPIServiceCondition(s, helper.NewLocalAvailableAPIServiceCondition())
			}
		},
		AnyFinalizers: true,
		NameOf: func(s service) func(string, bool) []string {
			return func(name string, prefix bool) []string {
				if msgs := path.ValidatePathSegmentName(name, prefix); len(msgs) > 0 {
					return msgs
				}
				if want := s.Spec.Version + "." + s.Spec.Group; name != want {
					return []string{fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)}
				}
				return nil
			}
		},
		Validate: func(_ context.Context, s service) field.ErrorList { return validate(s) },
		Update: api.KindUpdate[service]{
			Prepare:     func(_ context.Context, s, old service) { s.Status = old.Status },
			Validate:    func(_ context.Context, s, _ service) field.ErrorList { return validate(s) },
			ResetFields: [][]string{{"status"}},
			AsNew:       true,
		},
		Views: map[string]api.KindUpdate[service]{
			"status": {
				Prepare: func(_ context.Context, s, old service) {
					s.Spec = old.Spec
					s.Labels, s.Annotations = old.Labels, old.Annotations
					s.Finalizers, s.OwnerReferences = old.Finalizers, old.OwnerReferences
				},
				Validate:    func(_ context.Context, s, _ service) field.ErrorList { return validateStatus(&s.Status) },
				ResetFields: [][]string{{"spec"}, {"metadata"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Service", "string", "The reference to the service that hosts this API endpoint."),
			api.Column("Available", "string", "Whether this service is available."),
			api.AgeColumn,
		},
		Row: row,
	}
}

// validate returns the errors of an APIService's spec. Without a Service, which means that this server handles the
// requests, TLS settings are not allowed.
func validate(s *apiregistrationv1.APIService) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	switch {
	case s.Spec.Group != "":
		for _, msg := range validation.IsDNS1123Subdomain(s.Spec.Group) {
			errs = append(errs, field.Invalid(spec.Child("group"), s.Spec.Group, msg))
		}
	case s.Spec.Version != "v1":
		errs = append(errs, field.Required(spec.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	for _, msg := range validation.IsDNS1035Label(s.Spec.Version) {
		errs = append(errs, field.Invalid(spec.Child("version"), s.Spec.Version, msg))
	}
	if n := s.Spec.GroupPriorityMinimum; n <= 0 || n > 20000 {
		errs = append(errs, field.Invalid(spec.Child("groupPriorityMinimum"), n, "must be positive and less than 20000"))
	}
	if n := s.Spec.VersionPriority; n <= 0 || n > 1000 {
		errs = append(errs, field.Invalid(spec.Child("versionPriority"), n, "must be positive and less than 1000"))
	}
	insecure := s.Spec.InsecureSkipTLSVerify
	ref := s.Spec.Service
	if ref == nil {
		if n := len(s.Spec.CABundle); n != 0 {
			errs = append(errs, field.Invalid(spec.Child("caBundle"), fmt.Sprintf("%d bytes", n), "local APIServices may not have a caBundle"))
		}
		if insecure {
			errs = append(errs, field.Invalid(spec.Child("insecureSkipTLSVerify"), insecure, "local APIServices may not have insecureSkipTLSVerify"))
		}
		return errs
	}
	at := spec.Child("service")
	if ref.Namespace == "" {
		errs = append(errs, field.Required(at.Child("namespace"), ""))
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	var port int32
	if ref.Port != nil {
		port = *ref.Port
	}
	if msgs := validation.IsValidPortNum(int(port)); msgs != nil {
		errs = append(errs, field.Invalid(at.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if insecure && len(s.Spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(spec.Child("insecureSkipTLSVerify"), insecure, "may not be true if caBundle is present"))
	}
	return errs
}

func validateStatus(status *apiregistrationv1.APIServiceStatus) field.ErrorList {
	all := []apiregistrationv1.ConditionStatus{apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown}
	var errs field.ErrorList
	for i, c := range status.Conditions {
		switch c.Status {
		case apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown:
		default:
			errs = append(errs, field.NotSupported(field.NewPath("status", "conditions").Index(i).Child("status"), c.Status, all))
		}
	}
	return errs
}

// row returns the cells of an APIService: its Service or "Local", and whether it is available, with the reason if it is
// not.
func row(s *apiregistrationv1.APIService) []any {
	service := "Local"
	if ref := s.Spec.Service; ref != nil {
		service = ref.Namespace + "/" + ref.Name
	}
	available := string(apiregistrationv1.ConditionUnknown)
	if c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available); c != nil {
		available = string(c.Status)
		if c.Status != apiregistrationv1.ConditionTrue && c.Reason != "" {
			available += " (" + c.Reason + ")"
		}
	}
	return []any{s.Name, service, available, api.Age(s.CreationTimestamp)}
}
