package apiregistration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

func remote() *apiregistrationv1.APIService {
	s := &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{
		Group: "wardle.example.com", Version: "v1alpha1", GroupPriorityMinimum: 2000, VersionPriority: 200,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "api"},
	}}
	s.Name = "v1alpha1.wardle.example.com"
	return s
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*apiregistrationv1.APIService)
		want   string
	}{
		"good":          {func(*apiregistrationv1.APIService) {}, ""},
		"other name":    {func(s *apiregistrationv1.APIService) { s.Name = "x" }, "must be `spec.version"},
		"no group":      {func(s *apiregistrationv1.APIService) { s.Spec.Group, s.Name = "", "v1alpha1." }, "only v1 may have an empty group"},
		"priority":      {func(s *apiregistrationv1.APIService) { s.Spec.GroupPriorityMinimum = 20001 }, "must be positive and less than 20000"},
		"version prio":  {func(s *apiregistrationv1.APIService) { s.Spec.VersionPriority = 0 }, "must be positive and less than 1000"},
		"local with CA": {func(s *apiregistrationv1.APIService) { s.Spec.Service, s.Spec.CABundle = nil, []byte("x") }, "local APIServices may not have a caBundle"},
		"insecure": {func(s *apiregistrationv1.APIService) {
			s.Spec.InsecureSkipTLSVerify, s.Spec.CABundle = true, []byte("x")
		}, "may not be true if caBundle is present"},
		"no name":      {func(s *apiregistrationv1.APIService) { s.Spec.Service.Name = "" }, "spec.service.name"},
		"invalid port": {func(s *apiregistrationv1.APIService) { port := int32(70000); s.Spec.Service.Port = &port }, "port is not valid"},
	} {
		s := remote()
		c.change(s)
		r := apiService().Resource()
		r.Default(s)
		errs := r.Validate(context.Background(), s).ToAggregate()
		if c.want == "" && errs != nil || c.want != "" && (errs == nil || !strings.Contains(errs.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, errs, c.want)
		}
	}
}

func TestCreateAndShow(t *testing.T) {
	r := apiService().Resource()
	s := remote()
	r.Default(s)
	if *s.Spec.Service.Port != 443 {
		t.Errorf("port %d", *s.Spec.Service.Port)
	}
	r.PrepareCreate(context.Background(), s)
	if got := fmt.Sprint(r.Row(s)[:3]); got != "[v1alpha1.wardle.example.com default/api Unknown]" {
		t.Error(got)
	}
	helper.SetAPIServiceCondition(s, apiregistrationv1.APIServiceCondition{Type: "Available", Status: "False", Reason: "ServiceNotFound"})
	if got := fmt.Sprint(r.Row(s)[2]); got != "False (ServiceNotFound)" {
		t.Error(got)
	}
	s.Spec.Service = nil
	r.PrepareCreate(context.Background(), s)
	if got := fmt.Sprint(r.Row(s)[1:3]); got != "[Local True]" {
		t.Error(got)
	}
}

// TestFinalizers checks that a finalizer without a domain is accepted.
func TestFinalizers(t *testing.T) {
	res := apiService().Resource()
	s := remote()
	s.Finalizers = []string{"cleanup"}
	res.Default(s)
	if errs := res.Validate(context.Background(), s); len(errs) > 0 {
		t.Errorf("create was rejected: %v", errs)
	}
	s.ResourceVersion = "1"
	if errs := res.Update.Validate(context.Background(), s, s.DeepCopy()); len(errs) > 0 {
		t.Errorf("update was rejected: %v", errs)
	}
}
