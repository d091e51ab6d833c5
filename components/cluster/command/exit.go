package command

import "errors"

// Exit codes of all commands. ExitPreflight means that the machine does not meet a requirement, ExitConfig that a flag
// or a configuration file is invalid, ExitGeneral any other error.
const (
	ExitGeneral   = 1
	ExitPreflight = 2
	ExitConfig    = 3
)

// ConfigError returns err with the exit code of an invalid flag or configuration file.
func ConfigError(err error) error { return WithCode(err, ExitConfig) }

// PreflightError returns err with the exit code of a machine that does not meet a requirement.
func PreflightError(err error) error { return WithCode(err, ExitPreflight) }

// WithCode returns an error that wraps err, and with which the process exits with the exit code.
func WithCode(err error, code int) error { return codedError{err, code} }

// ExitCode returns the exit code of err, or ExitGeneral if it has none.
func ExitCode(err error) int {
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}
	return ExitGeneral
}

// codedError is an error with an exit code.
type codedError struct {
	error
	code int
}

// ExitCode returns the exit code of the process.
func (e codedError) ExitCode() int { return e.code }

func (e codedError) Unwrap() error { return e.error }
