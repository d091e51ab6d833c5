// Package audit records requests according to an audit policy, with upstream's events and backends.
// It is part of the filter chain and captures request and response bodies from the wire, so that
// the other code has no auditing cost.
//
// https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/request"
)

// event is an audit event: a stage of a request.
type event = auditapi.Event

// Auditor writes an audit event for each stage of a request that the audit policy selects. It is
// safe for concurrent use.
type Auditor struct {
	policy  audit.PolicyRuleEvaluator
	backend audit.Backend
	ready   chan struct{}
	// logFile is the open log file, or nil.
	logFile io.Closer
}

// newAuditor returns an Auditor that writes the events that policy selects to backend.
func newAuditor(policy audit.PolicyRuleEvaluator, backend audit.Backend) *Auditor {
	return &Auditor{policy: policy, backend: backend, ready: make(chan struct{})}
}

// Ready returns a channel that is closed once Run has started the backends, so that events are
// delivered.
func (a *Auditor) Ready() <-chan struct{} { return a.ready }

// Run starts the backends and delivers events to them until ctx is canceled. It then delivers the buffered events and
// closes the log file. It returns an error if a backend cannot start.
func (a *Auditor) Run(ctx context.Context) (err error) {
	defer func() {
		if a.logFile != nil {
			err = errors.Join(err, a.logFile.Close())
		}
	}()
	if err := a.backend.Run(ctx.Done()); err != nil {
		return fmt.Errorf("starting audit: %w", err)
	}
	close(a.ready)
	<-ctx.Done()
	a.backend.Shutdown()
	return nil
}

// begin evaluates the policy and starts the audit event of a request. received is the time at which the request
// arrived. It returns a nil AuditContext if the policy does not record the request. It returns an error if the
// request's context has no RequestInfo or no audit context.
func (a *Auditor) begin(req *http.Request, received time.Time) (*audit.AuditContext, audit.RequestAuditConfig, error) {
	ctx := req.Context()
	var none audit.RequestAuditConfig
	info, ok := apirequest.RequestInfoFrom(ctx)
	ac := audit.AuditContextFrom(ctx)
	if !ok || ac == nil {
		return nil, none, errors.New("no request information in the context")
	}
	u, _ := apirequest.UserFrom(ctx)
	attributes := &authorizer.AttributesRecord{
		User: u, Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}
	rules := a.policy.EvaluatePolicyRule(attributes)
	audit.ObservePolicyLevel(ctx, rules.Level)
	if err := ac.Init(rules, a.backend); err != nil {
		return nil, none, err
	}
	if rules.Level == auditapi.LevelNone {
		return nil, rules, nil
	}
	audit.LogRequestMetadata(ctx, req, received, attributes)
	return ac, rules, nil
}

// Serve calls next and records the request, which arrived at received. It responds with 500 without calling next if
// the event cannot be created, or cannot be stored and the mode is blocking-strict. A panic of next is recorded and
// then continues.
func (a *Auditor) Serve(w http.ResponseWriter, req *http.Request, received time.Time, next http.Handler) {
	ac, rules, err := a.begin(req, received)
	if err != nil {
		http.Error(w, "Internal Server Error: failed to create audit event", http.StatusInternalServerError)
		return
	}
	if ac == nil {
		next.ServeHTTP(w, req)
		return
	}
	ctx := req.Context()
	if !ac.ProcessEventStage(ctx, auditapi.StageRequestReceived) {
		audit.ApiserverAuditDroppedCounter.WithContext(ctx).Inc()
		http.Error(w, "Internal Server Error: failed to store audit event", http.StatusInternalServerError)
		return
	}
	info, _ := apirequest.RequestInfoFrom(ctx)
	t := newRequestRecord(w, ac, rules, info, ctx)
	t.longRunning = request.LongRunning(info)
	req = t.captureBodies(req)
	defer func() {
		v := recover()
		t.end(v)
		if v != nil {
			panic(v) // the filter chain recovers from the panic
		}
	}()
	next.ServeHTTP(t, req)
}

// Refused calls next, which rejects the request, and records the rejection with message, for example because
// authentication has failed. If the event cannot be created or delivered, the response is sent nevertheless.
func (a *Auditor) Refused(w http.ResponseWriter, req *http.Request, received time.Time, message string, next http.Handler) {
	ac, rules, err := a.begin(req, received)
	if err != nil || ac == nil {
		next.ServeHTTP(w, req)
		return
	}
	ac.SetEventResponseStatus(&metav1.Status{Message: message})
	info, _ := apirequest.RequestInfoFrom(req.Context())
	t := newRequestRecord(w, ac, rules, info, req.Context())
	t.longRunning = true // its last stage is ResponseStarted
	next.ServeHTTP(t, req)
	if t.code >= http.StatusBadRequest {
		t.logResponse()
		t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
	}
}
