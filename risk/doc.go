// Package risk decides, before its transaction, whether a command that would
// begin a relation goes on (J2): allow, refuse, or hide, which keeps the fact and
// leaves it out of the count that users see. A command that ends a relation is
// never asked about: what one has, one can take back.
//
//	Question ──▶ Rules: the first that matches ──────────────▶ Verdict
//	                 └─ none, or ask: always ──▶ Service (HTTP) ──┘
//	                                              └─ no answer: as configured
//
// Rules.Decide is a function of the question alone. A Decider has the rules of a
// file, reads them again when it changes, and asks the service; a file that
// cannot be used leaves the rules before in use.
//
// A Question says who does what from where. It is sent to the service and shown
// to nobody else: no log line, metric or error has any of it.
//
// Metrics:
//
//	tidemark_risk_verdicts_total{verdict,source,reason}  verdict allow, refuse, hide; source none, rules, service, unavailable
//	tidemark_risk_dry_runs_total{verdict,reason}         what rules with dryRun would have decided
//	tidemark_risk_service_seconds{result}                time of asking the service; result answer, timeout, error, busy, open
//	tidemark_risk_rules                                  rules in use
//	tidemark_risk_rules_info{version}                    1, with the version in use
//	tidemark_risk_rules_reloads_total{result}            readings of a changed file; result ok, error
//	tidemark_risk_rules_outdated                         1 while the file cannot be used and older rules are in use
//
// The values of label reason are those of the first hundred reasons that come in
// a process; the others are "other".
package risk
