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
func checkHooksAndProbes(e *validate.Errors, spec *corev1.PodSpec, ctr *corev1.Container, at *field.Path) {
	if l := ctr.Lifecycle; l != nil {
		if l.PostStart != nil {
			checkHook(e, spec, l.PostStart, at.Child("lifecycle", "postStart"))
		}
		if l.PreStop != nil {
			checkHook(e, spec, l.PreStop, at.Child("lifecycle", "preStop"))
		}
		if l.StopSignal != nil {
			checkStopSignal(e, spec, *l.StopSignal, at.Child("lifecycle", "stopSignal"))
		}
	}
	if p := ctr.LivenessProbe; p != nil {
		checkProbe(e, spec, p, true, at.Child("livenessProbe"))
	}
	if p := ctr.ReadinessProbe; p != nil {
		checkProbe(e, spec, p, false, at.Child("readinessProbe"))
		if p.TerminationGracePeriodSeconds != nil {
			e.Invalid(at.Child("readinessProbe", "terminationGracePeriodSeconds"), p.TerminationGracePeriodSeconds,
				"must not be set for readinessProbes")
		}
	}
	if p := ctr.StartupProbe; p != nil {
		checkProbe(e, spec, p, true, at.Child("startupProbe"))
	}
}

func checkProbe(e *validate.Errors, spec *corev1.PodSpec, p *corev1.Probe, onceIsEnough bool, at *field.Path) {
	checkHandler(e, spec, handler{exec: p.Exec, http: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}, at)
	e.NonNegative(at.Child("initialDelaySeconds"), int64(p.InitialDelaySeconds))
	e.NonNegative(at.Child("timeoutSeconds"), int64(p.TimeoutSeconds))
	e.NonNegative(at.Child("periodSeconds"), int64(p.PeriodSeconds))
	e.NonNegative(at.Child("successThreshold"), int64(p.SuccessThreshold))
	e.NonNegative(at.Child("failureThreshold"), int64(p.FailureThreshold))
	if p.TerminationGracePeriodSeconds != nil && *p.TerminationGracePeriodSeconds <= 0 {
		e.Invalid(at.Child("terminationGracePeriodSeconds"), *p.TerminationGracePeriodSeconds, "must be greater than 0")
	}
	if onceIsEnough && p.SuccessThreshold != 1 {
		e.Invalid(at.Child("successThreshold"), p.SuccessThreshold, "must be 1")
	}
}

func checkHook(e *validate.Errors, spec *corev1.PodSpec, h *corev1.LifecycleHandler, at *field.Path) {
	checkHandler(e, spec, handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}, at)
}

// handler contains the handler of a probe or lifecycle hook. Exactly one field should be set;
// checkHandler validates this.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

// checkHandler checks that exactly one field of h is set, and validates that handler. If several
// are set, it validates the first one in the order of the fields and rejects the others.
func checkHandler(e *validate.Errors, spec *corev1.PodSpec, h handler, at *field.Path) {
	types := 0
	is := func(set bool, name string) bool {
		if !set {
			return false
		}
		if types++; types > 1 {
			e.Forbidden(at.Child(name), "may not specify more than 1 handler type")
			return false
		}
		return true
	}
	if is(h.exec != nil, "exec") && len(h.exec.Command) == 0 {
		e.Required(at.Child("exec", "command"), "")
	}
	if is(h.http != nil, "httpGet") {
		checkHTTPGet(e, h.http, at.Child("httpGet"))
	}
	if is(h.tcp != nil, "tcpSocket") {
		checkPortOrName(e, h.tcp.Port, at.Child("tcpSocket", "port"))
	}
	if is(h.grpc != nil, "grpc") {
		checkPortOrName(e, intstr.FromInt32(h.grpc.Port), at.Child("grpc", "port"))
	}
	if is(h.sleep != nil, "sleep") {
		if grace := spec.TerminationGracePeriodSeconds; grace != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *grace) {
			e.Invalid(at.Child("sleep"), h.sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
		}
	}
	if types == 0 {
		e.Required(at, "must specify a handler type")
	}
}

func checkHTTPGet(e *validate.Errors, g *corev1.HTTPGetAction, at *field.Path) {
	if g.Path == "" {
		e.Required(at.Child("path"), "")
	}
	checkPortOrName(e, g.Port, at.Child("port"))
	validate.OneOf(e, at.Child("scheme"), g.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for _, h := range g.HTTPHeaders {
		e.InvalidAll(at.Child("httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))
	}
}

func checkPortOrName(e *validate.Errors, p intstr.IntOrString, at *field.Path) {
	switch p.Type {
	case intstr.Int:
		e.InvalidAll(at, p.IntValue(), validation.IsValidPortNum(p.IntValue()))
	case intstr.String:
		e.InvalidAll(at, p.StrVal, validation.IsValidPortName(p.StrVal))
	default:
		e.Add(field.ErrorList{field.InternalError(at, fmt.Errorf("unknown type: %v", p.Type))})
	}
}

// checkStopSignal validates the stop signal of a container, which is only allowed if the operating
// system is specified (KEP-4960).
func checkStopSignal(e *validate.Errors, spec *corev1.PodSpec, s corev1.Signal, at *field.Path) {
	switch {
	case spec.OS == nil || spec.OS.Name == "":
		e.Forbidden(at, "may not be set for containers with empty `spec.os.name`")
	case spec.OS.Name == corev1.Windows:
		validate.OneOf(e, at, s, corev1.SIGKILL, corev1.SIGTERM)
	default:
		validate.OneOf(e, at, s, linuxSignals()...)
	}
}

// linuxSignals returns the names of the signals that Linux containers may use as stop signal, in
// the order of upstream's error message.
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
