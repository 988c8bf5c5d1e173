#include "verify/report/html_sections.h"

namespace ingot::verify {

// Blue and orange stay apart for every kind of colour vision; good and bad differ in their signs
// and words as well. The steps h0 (least SQNR) to h7 run away from the page's background, so that
// what is worst stands out in both themes.
std::string_view html_style() {
  return R"css(:root{--page:#f4f5f7;--card:#fff;--ink:#1b1f24;--soft:#5a636e;--line:#d9dde3;--grid:#e6e9ed;
--a:#1a66c2;--a2:#8fb6e4;--b:#c05408;--good:#0a6c5f;--good-bg:#e2f3ef;--bad:#b3261e;--bad-bg:#fbe6e3;
--mild:#7a5300;--mild-bg:#f8ecd2;--same:#d5d0c6;--mark:#ffd98a;--mark-ink:#3a2700;--shade:#0b152529;
--h0:#06254f;--h1:#0c3f80;--h2:#175aa8;--h3:#3379c6;--h4:#5f9bd9;--h5:#8fbce8;--h6:#bcd8f3;--h7:#e0edfa}
@media (prefers-color-scheme:dark){:root{--page:#101317;--card:#181c22;--ink:#e4e7eb;--soft:#9aa4b0;
--line:#2e353e;--grid:#262c34;--a:#6aaaf2;--a2:#4b79ae;--b:#f0904a;--good:#5cc9b5;--good-bg:#12312c;
--bad:#ff8a7e;--bad-bg:#421c18;--mild:#e3b96a;--mild-bg:#3a2c10;--same:#4a463e;--mark:#7a5a10;
--mark-ink:#fff1cf;--shade:#0009;--h0:#e6f1fd;--h1:#c2dcf7;--h2:#97c2ee;--h3:#6aa5e0;--h4:#4585c6;--h5:#2f659f;
--h6:#224874;--h7:#1a324f}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1200px;margin:0 auto;padding:24px 20px 8px}
section,header{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:18px 22px;margin:0 0 18px;min-width:0}
header{display:flex;gap:6px 22px;align-items:flex-start;border-left-width:8px}
header>div{min-width:0;flex:1}
header.good{border-left-color:var(--good)}
header.bad{border-left-color:var(--bad)}
.verdict{margin:0;font-size:27px;line-height:1.3;font-weight:750;white-space:nowrap}
.good .verdict{color:var(--good)}
.bad .verdict,.bad-text{color:var(--bad)}
h1{font-size:18px;line-height:1.4;margin:3px 0 4px;font-weight:600;overflow-wrap:anywhere}
h2{font-size:18px;line-height:1.3;margin:0 0 10px}
h3{font-size:16px;margin:20px 0 4px}
h4{font-size:12px;margin:0 0 2px;color:var(--soft);font-weight:600}
p{margin:0 0 8px;overflow-wrap:anywhere}
header p,header ul{color:var(--soft);margin-bottom:0}
header .verdict{margin-top:0}
ul{margin:6px 0 0;padding-left:20px;overflow-wrap:anywhere}
ul.findings{list-style:none;padding:0}
.findings li{padding:6px 0;border-top:1px solid var(--grid)}
.note,small,footer{color:var(--soft);font-size:13px}
.note{margin:10px 0 0}
footer{max-width:1200px;margin:0 auto;padding:0 22px 28px}
code,.name,.answer,.prompt{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
font-size:13px}
.nowrap{white-space:nowrap}
.scroll{overflow-x:auto;max-width:100%;background:
linear-gradient(to right,var(--card) 40%,transparent) 0 0/36px 100% no-repeat local,
linear-gradient(to left,var(--card) 40%,transparent) 100% 0/36px 100% no-repeat local,
linear-gradient(to right,var(--shade),transparent) 0 0/14px 100% no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) 100% 0/14px 100% no-repeat scroll}
section>.scroll+.scroll{margin-top:16px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px;vertical-align:bottom;white-space:nowrap}
th,td{padding:5px 13px 5px 0;border-bottom:1px solid var(--grid)}
td{vertical-align:top}
th:last-child,td:last-child{padding-right:2px}
tr:last-child td{border-bottom:0}
.n{text-align:right;white-space:nowrap}
td:not(.name){white-space:nowrap}
.name{min-width:240px;overflow-wrap:anywhere}
.badge{display:inline-block;white-space:nowrap;border-radius:5px;padding:0 8px;font-size:13px;font-weight:600}
.badge.good{color:var(--good);background:var(--good-bg)}
.badge.bad{color:var(--bad);background:var(--bad-bg)}
.badge.mild{color:var(--mild);background:var(--mild-bg)}
svg{display:block;height:auto}
svg text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
font-variant-numeric:tabular-nums}
svg .mid{text-anchor:middle}
svg .end{text-anchor:end}
svg .soft{fill:var(--soft)}
.axis{stroke:var(--soft);stroke-width:1}
.grid{stroke:var(--grid);stroke-width:1}
.a,.a-key{fill:var(--a);background:var(--a)}
.b,.b-key{fill:var(--b);background:var(--b)}
.a-line{stroke:var(--a);stroke-width:2;fill:none}
.b-line{stroke:var(--b);stroke-width:2;fill:none;stroke-dasharray:6 3}
.worst{stroke:var(--a2);stroke-width:1.3;fill:none}
.worst-mark{fill:var(--card);stroke:var(--a2);stroke-width:1.3}
.limit{stroke:var(--bad);stroke-width:1.2;stroke-dasharray:2 3}
svg .limit-text{fill:var(--bad);paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.ring{fill:none;stroke:var(--bad);stroke-width:2}
.fault{fill:var(--bad)}
.flaw{fill:none;stroke:var(--bad);stroke-width:2}
svg .fault{stroke:var(--card);stroke-width:1}
.same{fill:var(--same)}
.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}
.h4{fill:var(--h4)}.h5{fill:var(--h5)}.h6{fill:var(--h6)}.h7{fill:var(--h7)}
.legend{font-size:13px;color:var(--soft)}
.key{display:inline-block;width:11px;height:11px;border-radius:50%;margin:0 6px 0 12px}
.key:first-child{margin-left:0}
.b-key{border-radius:1px;transform:rotate(45deg) scale(.85)}
.w-key{border:2px solid var(--a2)}
.swatch{display:inline-block;width:17px;height:13px;margin:0 5px 0 8px;border-radius:2px;
border:1px solid var(--line);vertical-align:-2px;font-size:10px;line-height:11px;text-align:center;color:var(--bad)}
.k0{background:var(--h0)}.k1{background:var(--h1)}.k2{background:var(--h2)}.k3{background:var(--h3)}
.k4{background:var(--h4)}.k5{background:var(--h5)}.k6{background:var(--h6)}.k7{background:var(--h7)}
.k-same{background:var(--same)}
.k-flaw{border:2px solid var(--bad);line-height:9px}
.heat{display:flex}
.heat>svg{flex:none}
.heat>.scroll{min-width:0}
.figures{display:flex;flex-wrap:wrap;gap:18px 26px}
figure{margin:0;flex:1 1 330px;min-width:0;max-width:540px}
figcaption{margin-bottom:4px;font-size:14px}
details{margin-top:10px}
summary{cursor:pointer;color:var(--soft);font-size:13px}
article{border-top:1px solid var(--line);padding:12px 0 4px;margin-top:10px}
.prompt,.answer{white-space:pre-wrap;overflow-wrap:anywhere}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:12px}
.pair>div{min-width:0;background:var(--page);border-radius:6px;padding:8px 12px}
.answer{margin:0}
mark{background:var(--mark);color:var(--mark-ink);border-radius:3px;padding:0 2px}
@media (max-width:640px){main{padding:10px 8px 0}section,header{padding:14px 13px;border-radius:8px}
header{display:block;border-left-width:6px}.pair{grid-template-columns:1fr}.name{min-width:200px}}
@media print{body{background:none}section,header{break-inside:avoid;border-color:#999}}
)css";
}

}  // namespace ingot::verify
