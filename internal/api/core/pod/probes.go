package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// checkHooksAndProbes validates the hooks and probes of regular containers and sidecars.
func (c *checker) checkHooksAndProbes(ctr *corev1.Container, at *field.Path) {
	if l := ctr.Lifecycle; l != nil {
		if l.PostStart != nil {
			c.checkHook(l.PostStart, at.Child("lifecycle", "postStart"))
		}
		if l.PreStop != nil {
			c.checkHook(l.PreStop, at.Child("lifecycle", "preStop"))
		}
		if l.StopSignal != nil {
			c.checkStopSignal(*l.StopSignal, at.Child("lifecycle", "stopSignal"))
		}
	}
	if p := ctr.LivenessProbe; p != nil {
		c.checkProbe(p, true, at.Child("livenessProbe"))
	}
	if p := ctr.ReadinessProbe; p != nil {
		c.checkProbe(p, false, at.Child("readinessProbe"))
		if p.TerminationGracePeriodSeconds != nil {
			c.Invalid(at.Child("readinessProbe", "terminationGracePeriodSeconds"), p.TerminationGracePeriodSeconds,
				"must not be set for readinessProbes")
		}
	}
	if p := ctr.StartupProbe; p != nil {
		c.checkProbe(p, true, at.Child("startupProbe"))
	}
}

func (c *checker) checkProbe(p *corev1.Probe, onceIsEnough bool, at *field.Path) {
	c.checkHandler(handler{exec: p.Exec, http: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}, at)
	c.NonNegative(at.Child("initialDelaySeconds"), int64(p.InitialDelaySeconds))
	c.NonNegative(at.Child("timeoutSeconds"), int64(p.TimeoutSeconds))
	c.NonNegative(at.Child("periodSeconds"), int64(p.PeriodSeconds))
	c.NonNegative(at.Child("successThreshold"), int64(p.SuccessThreshold))
	c.NonNegative(at.Child("failureThreshold"), int64(p.FailureThreshold))
	if p.TerminationGracePeriodSeconds != nil && *p.TerminationGracePeriodSeconds <= 0 {
		c.Invalid(at.Child("terminationGracePeriodSeconds"), *p.TerminationGracePeriodSeconds, "must be greater than 0")
	}
	if onceIsEnough && p.SuccessThreshold != 1 {
		c.Invalid(at.Child("successThreshold"), p.SuccessThreshold, "must be 1")
	}
}

func (c *checker) checkHook(h *corev1.LifecycleHandler, at *field.Path) {
	c.checkHandler(handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}, at)
}

// handler is the handler of a probe or hook.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

// checkHandler checks that exactly one handler is set. If several are set, it validates the first
// one in this order.
func (c *checker) checkHandler(h handler, at *field.Path) {
	types := 0
	is := func(set bool, name string) bool {
		if !set {
			return false
		}
		if types++; types > 1 {
			c.Forbidden(at.Child(name), "may not specify more than 1 handler type")
			return false
		}
		return true
	}
	if is(h.exec != nil, "exec") && len(h.exec.Command) == 0 {
		c.Required(at.Child("exec", "command"), "")
	}
	if is(h.http != nil, "httpGet") {
		c.checkHTTPGet(h.http, at.Child("httpGet"))
	}
	if is(h.tcp != nil, "tcpSocket") {
		c.checkPortOrName(h.tcp.Port, at.Child("tcpSocket", "port"))
	}
	if is(h.grpc != nil, "grpc") {
		c.checkPortOrName(intstr.FromInt32(h.grpc.Port), at.Child("grpc", "port"))
	}
	if is(h.sleep != nil, "sleep") {
		if grace := c.spec.TerminationGracePeriodSeconds; grace != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *grace) {
			c.Invalid(at.Child("sleep"), h.sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
		}
	}
	if types == 0 {
		c.Required(at, "must specify a handler type")
	}
}

func (c *checker) checkHTTPGet(g *corev1.HTTPGetAction, at *field.Path) {
	if g.Path == "" {
		c.Required(at.Child("path"), "")
	}
	c.checkPortOrName(g.Port, at.Child("port"))
	validate.OneOf(&c.Errors, at.Child("scheme"), g.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for _, h := range g.HTTPHeaders {
		c.InvalidAll(at.Child("httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))
	}
}

func (c *checker) checkPortOrName(p intstr.IntOrString, at *field.Path) {
	switch p.Type {
	case intstr.Int:
		c.InvalidAll(at, p.IntValue(), validation.IsValidPortNum(p.IntValue()))
	case intstr.String:
		c.InvalidAll(at, p.StrVal, validation.IsValidPortName(p.StrVal))
	default:
		c.Add(field.ErrorList{field.InternalError(at, fmt.Errorf("unknown type: %v", p.Type))})
	}
}

// checkStopSignal validates the stop signal of a container, which is only allowed if the operating
// system is specified (KEP-4960).
func (c *checker) checkStopSignal(s corev1.Signal, at *field.Path) {
	switch {
	case c.spec.OS == nil || c.spec.OS.Name == "":
		c.Forbidden(at, "may not be set for containers with empty `spec.os.name`")
	case c.spec.OS.Name == corev1.Windows:
		validate.OneOf(&c.Errors, at, s, corev1.SIGKILL, corev1.SIGTERM)
	default:
		validate.OneOf(&c.Errors, at, s, linuxSignals()...)
	}
}

// linuxSignals returns the names of all Linux signals.
func linuxSignals() []corev1.Signal {
	signals := []corev1.Signal{
		corev1.SIGABRT, corev1.SIGALRM, corev1.SIGBUS, corev1.SIGCHLD, corev1.SIGCLD, corev1.SIGCONT, corev1.SIGFPE,
		corev1.SIGHUP, corev1.SIGILL, corev1.SIGINT, corev1.SIGIO, corev1.SIGIOT, corev1.SIGKILL, corev1.SIGPIPE,
		corev1.SIGPOLL, corev1.SIGPROF, corev1.SIGPWR, corev1.SIGQUIT, corev1.SIGRTMAX,
	}
	for i := 1; i <= 14; i++ {
		signals = append(signals, corev1.Signal(fmt.Sprintf("SIGRTMAX-%d", i)))
	}
	signals = append(signals, corev1.SIGRTMIN)
	for i := 1; i <= 15; i++ {
		signals = append(signals, corev1.Signal(fmt.Sprintf("SIGRTMIN+%d", i)))
	}
	return append(signals, corev1.SIGSEGV, corev1.SIGSTKFLT, corev1.SIGSTOP, corev1.SIGSYS, corev1.SIGTERM,
		corev1.SIGTRAP, corev1.SIGTSTP, corev1.SIGTTIN, corev1.SIGTTOU, corev1.SIGURG, corev1.SIGUSR1, corev1.SIGUSR2,
		corev1.SIGVTALRM, corev1.SIGWINCH, corev1.SIGXCPU, corev1.SIGXFSZ)
}
