package connect

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/components/apiserver/request"
)

// query parses options from the parameters of a request's URL and keeps the first error.
type query struct {
	url.Values
	err error
}

// flag returns a boolean parameter of the query. It is false if the parameter is missing.
func (q *query) flag(name string) bool { return request.IsTrue(q.Values, name) }

// integer returns an integer parameter, or nil if it is missing. If it is invalid, q.err is set.
func (q *query) integer(name string) *int64 {
	s := q.Get(name)
	if s == "" {
		return nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && q.err == nil {
		q.err = apierrors.NewBadRequest(err.Error())
	}
	return &n
}

// time returns a parameter that is a time, or nil if it is missing. If it is invalid, q.err is set.
func (q *query) time(name string) *metav1.Time {
	s := q.Get(name)
	if s == "" {
		return nil
	}
	var t metav1.Time
	if err := t.UnmarshalQueryParameter(s); err != nil && q.err == nil {
		q.err = apierrors.NewBadRequest(err.Error())
	}
	return &t
}

// execOptions returns the *PodExecOptions in the query of an exec request.
func execOptions(values url.Values, _ string) (runtime.Object, error) {
	q := &query{Values: values}
	return &corev1.PodExecOptions{
		Stdin: q.flag("stdin"), Stdout: q.flag("stdout"), Stderr: q.flag("stderr"), TTY: q.flag("tty"),
		Container: q.Get("container"), Command: values["command"],
	}, q.err
}

// attachOptions returns the *PodAttachOptions in the query of an attach request.
func attachOptions(values url.Values, _ string) (runtime.Object, error) {
	q := &query{Values: values}
	return &corev1.PodAttachOptions{
		Stdin: q.flag("stdin"), Stdout: q.flag("stdout"), Stderr: q.flag("stderr"), TTY: q.flag("tty"),
		Container: q.Get("container"),
	}, q.err
}

// portForwardOptions returns the *PodPortForwardOptions in the query of a port-forward request. It returns a
// BadRequest error if a port is invalid.
func portForwardOptions(values url.Values, _ string) (runtime.Object, error) {
	o := &corev1.PodPortForwardOptions{}
	for _, v := range values["ports"] {
		for s := range strings.SplitSeq(v, ",") {
			n, err := strconv.ParseUint(s, 10, 16)
			if err != nil {
				return nil, badRequest("cannot convert to []int32: %v", err)
			}
			o.Ports = append(o.Ports, int32(n))
		}
	}
	return o, nil
}

// logOptions returns the *PodLogOptions in the query of a request for a container's log. It returns a BadRequest error
// if a parameter is invalid.
func logOptions(values url.Values, _ string) (runtime.Object, error) {
	q := &query{Values: values}
	o := &corev1.PodLogOptions{
		Container:                    q.Get("container"),
		Follow:                       q.flag("follow"),
		Previous:                     q.flag("previous"),
		SinceSeconds:                 q.integer("sinceSeconds"),
		SinceTime:                    q.time("sinceTime"),
		Timestamps:                   q.flag("timestamps"),
		TailLines:                    q.integer("tailLines"),
		LimitBytes:                   q.integer("limitBytes"),
		InsecureSkipTLSVerifyBackend: q.flag("insecureSkipTLSVerifyBackend"),
	}
	if s := q.Get("stream"); s != "" {
		o.Stream = &s
	}
	if q.err != nil {
		return nil, q.err
	}
	return o, nil
}

// validateLog returns an Invalid error if the options of a log request are invalid or contradict each other, and nil
// otherwise. pod is the name of the pod.
func validateLog(pod string, o *corev1.PodLogOptions) error {
	var errs field.ErrorList
	if n := o.TailLines; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *n, "must be greater than or equal to 0"))
	}
	if n := o.LimitBytes; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *n, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil {
		switch *o.Stream {
		case corev1.LogStreamAll:
		case corev1.LogStreamStdout, corev1.LogStreamStderr:
			if o.TailLines != nil {
				errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
			}
		default:
			errs = append(errs, field.NotSupported(field.NewPath("stream"), *o.Stream, []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), pod, errs)
}

// podProxyOptions returns the options for proxying a request to a pod, for admission plugins. path is the path in the
// request to the pod.
func podProxyOptions(_ url.Values, path string) (runtime.Object, error) {
	return &corev1.PodProxyOptions{Path: path}, nil
}

// serviceProxyOptions returns the options for proxying a request to a Service, for admission plugins. path is the
// path in the request to the Service.
func serviceProxyOptions(_ url.Values, path string) (runtime.Object, error) {
	return &corev1.ServiceProxyOptions{Path: path}, nil
}

// nodeProxyOptions returns the options for proxying a request to a kubelet, for admission plugins. path is the path
// in the request to the kubelet.
func nodeProxyOptions(_ url.Values, path string) (runtime.Object, error) {
	return &corev1.NodeProxyOptions{Path: path}, nil
}

// streamQuery returns the query parameters of an exec or attach request to a kubelet: the streams
// to connect, and the command.
func streamQuery(stdin, stdout, stderr, tty bool, command []string) url.Values {
	v := url.Values{}
	for name, on := range map[string]bool{
		corev1.ExecStdinParam: stdin, corev1.ExecStdoutParam: stdout, corev1.ExecStderrParam: stderr, corev1.ExecTTYParam: tty,
	} {
		if on {
			v.Set(name, "1")
		}
	}
	for _, c := range command {
		v.Add(corev1.ExecCommandParam, c)
	}
	return v
}

// logQuery returns the query parameters of a request to a kubelet for a container's log.
func logQuery(o *corev1.PodLogOptions) url.Values {
	v := url.Values{}
	flag := func(name string, on bool) {
		if on {
			v.Set(name, "true")
		}
	}
	number := func(name string, n *int64) {
		if n != nil {
			v.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	flag("follow", o.Follow)
	flag("previous", o.Previous)
	flag("timestamps", o.Timestamps)
	number("sinceSeconds", o.SinceSeconds)
	number("tailLines", o.TailLines)
	number("limitBytes", o.LimitBytes)
	if o.SinceTime != nil {
		v.Set("sinceTime", o.SinceTime.Format("2006-01-02T15:04:05Z07:00"))
	}
	if o.Stream != nil {
		v.Set("stream", *o.Stream)
	}
	return v
}

// badRequest returns an API error with the status 400.
func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}
